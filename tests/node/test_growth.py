"""A topic that is given more shards while it works keeps everything it promised."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.columns import Column, id_of, place_of
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.keyed import shard_of
from penstock.message import Rows
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.site import Site

BY_KEY = SubscriptionSettings(order="key")


@pytest.fixture
def site() -> Site:
    return Site()


def grow(topic: Topic, shards: int) -> None:
    topic.update(msgspec.structs.replace(topic.settings, shards=shards)).now()


def key_that_moves(before: int, after: int, number: int = 0) -> bytes:
    """Return a key whose shard is another one after a growth."""
    found = (b"key %d" % n for n in range(1000) if shard_of(b"key %d" % n, before) != shard_of(b"key %d" % n, after))
    return [next(found) for _ in range(number + 1)][-1]


class Publisher:
    """Somebody who publishes."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def publish(
        self, topic: Topic, *bodies: bytes, sequence: bytes = b"", shard: int | None = None, **columns: Column
    ) -> Receipt:
        told: list[Receipt | None] = []
        rows = Rows.of(list(bodies), "test", columns or None)
        rows.sequence = sequence
        topic.publish(rows, self, lambda receipt, _: told.append(receipt), shard)
        self.site.machine.run(1)
        (receipt,) = told
        assert receipt is not None
        return receipt


class Reader:
    """A consumer that remembers what it holds, in order."""

    def __init__(
        self,
        site: Site,
        topic: Topic,
        name: str = "audit",
        credit: int = 100,
        settings: SubscriptionSettings | None = None,
    ) -> None:
        self.site = site
        self.got: list[bytes] = []
        self.ids: dict[bytes, int] = {}
        self.seat: Seat = topic.attach(topic.subscribe(name, settings).now(), self._deliver, lease_ns=60 * SECOND)
        self.seat.set_credit(credit)
        site.machine.run()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            for offset in delivery.offsets():
                body = delivery.batch.row_body(offset - delivery.batch.first)
                self.got.append(body)
                self.ids[body] = id_of(delivery.shard, offset)

    def ack(self, *bodies: bytes) -> None:
        assert self.seat.ack([self.ids[body] for body in bodies]) == []
        self.site.machine.run()


# --- the shards themselves --------------------------------------------------------------------------------------------


def test_new_shards_begin_empty_and_take_what_is_published_to_them(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    reader = Reader(site, topic)
    Publisher(site).publish(topic, b"old")
    grow(topic, 3)
    assert [shard.end for shard in topic.shards] == [1, 0, 0]
    assert topic.settings.shards == 3
    for shard in range(3):
        Publisher(site).publish(topic, b"to %d" % shard, shard=shard)
    assert reader.got == [b"old", b"to 0", b"to 1", b"to 2"]


def test_fewer_shards_are_refused_with_a_reason_and_a_way_out(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(shards=4)).now()
    with pytest.raises(Refusal, match=r"has 4 shards and cannot have 2: .* Make a topic with 2") as refused:
        grow(topic, 2)
    assert refused.value.code == "bad_request"
    assert topic.settings.shards == 4


def test_more_shards_than_there_can_be_are_refused_and_leave_nothing_behind(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    with pytest.raises(Refusal, match="at most 32768"):
        grow(topic, 40_000)
    assert len(topic.shards) == topic.settings.shards == 1
    assert [name for name in site.machine.disk.list(topic.path) if name.isdigit()] == ["0"]
    Publisher(site).publish(topic, b"still taken")


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_grown_topic_is_grown_after_a_restart_with_all_that_was_in_it(site: Site, durability: str) -> None:
    topic = site.node.create_topic("t", msgspec.convert({"durability": durability}, TopicSettings)).now()
    topic.subscribe("audit")
    Publisher(site).publish(topic, b"old")
    grow(topic, 3)
    Publisher(site).publish(topic, b"new", shard=2)
    site.start()
    topic = site.node.topic("t")
    assert len(topic.shards) == 3
    assert sorted(Reader(site, topic).got) == ([] if durability == "memory" else [b"new", b"old"])
    Publisher(site).publish(topic, b"later", shard=1)
    assert Reader(site, topic, "other", credit=0).got == []


def test_crash_between_record_and_directories_is_healed_at_the_start(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    grow(topic, 3)
    site.machine.disk.remove(f"{topic.path}/2")
    site.start()
    topic = site.node.topic("t")
    reader = Reader(site, topic)
    Publisher(site).publish(topic, b"one", shard=2)
    assert reader.got == [b"one"]


def test_growth_on_a_full_disk_happens_whole_or_not_at_all(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    reader = Reader(site, topic)
    refused = 0
    for room in range(0, 4000, 40):
        site.machine.platter.capacity_bytes = site.machine.platter.used_bytes + room
        try:
            grow(topic, 4)
        except Refusal:
            refused += 1
            assert len(topic.shards) == topic.settings.shards == 1
            continue
        break
    site.machine.make_room()
    assert refused
    assert len(topic.shards) == topic.settings.shards == 4
    Publisher(site).publish(topic, b"one", shard=3)
    assert reader.got == [b"one"]


# --- what follows -----------------------------------------------------------------------------------------------------


def test_subscription_that_reads_from_the_end_gets_everything_of_a_new_shard(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    topic.subscribe("first")
    Publisher(site).publish(topic, b"old")
    Reader(site, topic, "late", credit=0).seat.close()
    grow(topic, 2)
    Publisher(site).publish(topic, b"new", shard=1)
    site.start()
    assert Reader(site, site.node.topic("t"), "late").got == [b"new"]


def test_paused_topic_keeps_back_what_comes_to_its_new_shards(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    reader = Reader(site, topic)
    topic.pause(paused=True)
    grow(topic, 2)
    Publisher(site).publish(topic, b"held", shard=1)
    assert (reader.got, topic.depth()) == ([], 1)
    site.start()
    topic = site.node.topic("t")
    reader = Reader(site, topic)
    assert reader.got == []
    topic.pause(paused=False)
    site.machine.run()
    assert reader.got == [b"held"]


def test_rows_of_a_new_shard_wait_for_their_time(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    reader = Reader(site, topic)
    grow(topic, 2)
    Publisher(site).publish(topic, b"later", shard=1, due=[site.machine.clock.now() + 3 * SECOND])
    assert reader.got == []
    site.machine.run(3)
    assert reader.got == [b"later"]


def test_named_holder_keeps_its_leases_of_new_shards_over_a_restart(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    holder = topic.subscribe("audit").now().holder("me")
    grow(topic, 2)
    Publisher(site).publish(topic, b"one", shard=1)
    holder.look(10, 600 * SECOND, lambda deliveries: None)
    site.machine.run()
    before = holder.leases()
    assert [lease.id for lease in before] == [id_of(1, 0)]
    site.start()
    holder = site.node.topic("t").subscription("audit").holder("me")
    assert [lease[:3] for lease in holder.leases()] == [lease[:3] for lease in before]


def test_history_retention_and_empty_follow_new_shards(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(retention_age_ns=0, retention_bytes=0)).now()
    grow(topic, 2)
    reader = Reader(site, topic)
    Publisher(site).publish(topic, b"one", shard=1)
    reader.ack(b"one")
    topic.shards[1].roll()
    site.machine.run(200)
    assert topic.shards[1].start == 1
    assert site.node.bugs == 0
    topic.delete_subscription("audit")
    Publisher(site).publish(topic, b"two", shard=1)
    assert topic.depth() == 1
    topic.empty()
    assert topic.depth() == 0


def test_publisher_keeps_its_shard_when_the_topic_grows_and_new_ones_use_the_new_shards(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    old, new = Publisher(site), [Publisher(site) for _ in range(3)]
    old.publish(topic, b"before")
    grow(topic, 4)
    assert place_of(old.publish(topic, b"after").first_id) == (0, 1)
    assert [place_of(each.publish(topic, b"first").first_id)[0] for each in new] == [1, 2, 3]
    grow(topic, 6)
    assert place_of(old.publish(topic, b"again").first_id)[0] == 0
    assert [place_of(each.publish(topic, b"second").first_id)[0] for each in new] == [1, 2, 3]
    assert place_of(Publisher(site).publish(topic, b"newest").first_id)[0] == 4


def test_publisher_that_is_gone_leaves_its_place_to_nobody(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    for _ in range(20):
        Publisher(site).publish(topic, b"before")
    grow(topic, 2)
    homes = {place_of(Publisher(site).publish(topic, b"after").first_id)[0] for _ in range(4)}
    assert homes == {0, 1}


# --- idempotence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_batch_of_before_the_growth_that_is_published_again_is_recognised(
    site: Site, before: int, restart: bool
) -> None:
    topic = site.node.create_topic("t", TopicSettings(shards=before)).now()
    keys: Column = [b"key %d" % (row % 7) if row % 5 else None for row in range(40)]
    bodies = [b"%d" % row for row in range(40)]
    first = Publisher(site).publish(topic, *bodies, sequence=b"batch 9", key=keys)
    one_key = Publisher(site).publish(topic, b"x", b"y", sequence=b"batch 10", key=[b"a", b"a"])
    for shards in (before + 1, before + 3):
        grow(topic, shards)
        if restart:
            site.start()
            topic = site.node.topic("t")
        again = Publisher(site).publish(topic, *bodies, sequence=b"batch 9", key=keys)
        assert (again.ids(), again.repeated) == (first.ids(), 40)
        again = Publisher(site).publish(topic, b"x", b"y", sequence=b"batch 10", key=[b"a", b"a"])
        assert (again.ids(), again.repeated) == (one_key.ids(), 2)
    assert sum(shard.end for shard in topic.shards) == 42


def test_retry_after_a_growth_stores_what_the_first_try_could_not(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(shards=2)).now()
    keys: Column = [b"key %d" % row for row in range(30)]
    bodies = [b"%d" % row for row in range(30)]
    second = topic.shards[1]
    append = second.append

    def refuse(rows: Rows, now_ns: int) -> object:
        raise Refusal("disk_full", "no room")

    second.append = refuse  # type: ignore[method-assign, assignment]
    rows = Rows.of(bodies, "test", {"key": keys})
    rows.sequence = b"batch 1"
    told: list[BaseException | None] = []
    topic.publish(rows, site, lambda _, error: told.append(error))
    site.machine.run()
    assert isinstance(told[0], Refusal)
    second.append = append  # type: ignore[method-assign]
    stored = topic.shards[0].end
    assert 0 < stored < 30
    for shards in (3, 5):
        grow(topic, shards)
        receipt = Publisher(site).publish(topic, *bodies, sequence=b"batch 1", key=keys)
        assert len(set(receipt.ids())) == 30
        assert sum(shard.end for shard in topic.shards) == 30
    reader = Reader(site, topic)
    assert sorted(reader.got) == sorted(bodies)
    assert {body: reader.ids[body] for body in bodies} == dict(zip(bodies, receipt.ids(), strict=True))


@pytest.mark.parametrize("restart", [False, True])
def test_row_with_a_dedup_key_is_recognised_after_the_growth(site: Site, restart: bool) -> None:
    topic = site.node.create_topic("t").now()
    first = Publisher(site).publish(topic, b"once", dedup=[b"id 1"], key=[key_that_moves(1, 4)])
    grow(topic, 4)
    if restart:
        site.start()
        topic = site.node.topic("t")
    again = Publisher(site).publish(topic, b"once", dedup=[b"id 1"], key=[key_that_moves(1, 4)])
    assert (again.ids(), again.repeated) == (first.ids(), 1)


# --- order by key -----------------------------------------------------------------------------------------------------


def test_key_that_moved_goes_out_from_its_old_shard_first(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    publisher.publish(topic, b"1", b"2", key=[key] * 2)
    grow(topic, 2)
    publisher.publish(topic, b"3", b"4", key=[key] * 2)
    assert [shard.end for shard in topic.shards] == [2, 2]
    reader = Reader(site, topic, settings=BY_KEY)
    for number in range(1, 5):
        assert reader.got == [b"%d" % n for n in range(1, number + 1)]
        reader.ack(b"%d" % number)


def test_keys_that_are_free_go_out_while_a_moved_one_waits(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    stuck, free = key_that_moves(1, 2), key_that_moves(1, 2, 1)
    reader = Reader(site, topic, settings=BY_KEY)
    publisher = Publisher(site)
    publisher.publish(topic, b"stuck", key=[stuck])
    grow(topic, 2)
    publisher.publish(topic, b"waits", b"goes", key=[stuck, free])
    publisher.publish(topic, b"no key", shard=1)
    assert reader.got == [b"stuck", b"goes", b"no key"]
    reader.ack(b"stuck")
    assert reader.got[-1] == b"waits"


def test_moved_key_waits_for_rows_that_nobody_has_read_yet(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    topic.subscribe("audit", BY_KEY)
    publisher.publish(topic, *(b"other %d" % n for n in range(50)), key=[b"other %d" % n for n in range(50)])
    publisher.publish(topic, b"first", key=[key])
    grow(topic, 2)
    publisher.publish(topic, b"second", key=[key])
    reader = Reader(site, topic, credit=1)
    while reader.got[-1] != b"second":
        reader.ack(reader.got[-1])
    assert reader.got.index(b"first") < reader.got.index(b"second")
    assert len(reader.got) == 52


def test_moved_key_waits_for_a_row_that_was_released_and_comes_back_later(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    reader = Reader(site, topic, settings=BY_KEY)
    publisher.publish(topic, b"first", key=[key])
    reader.seat.release([reader.ids[b"first"]], 5 * SECOND)
    grow(topic, 2)
    publisher.publish(topic, b"second", key=[key])
    for _ in range(2):
        assert reader.got == [b"first"]
        site.start()
        topic = site.node.topic("t")
        reader.got.clear()
        reader = Reader(site, topic)
        reader.got.insert(0, b"first")
    site.machine.run(5)
    assert reader.got == [b"first", b"first"]
    reader.ack(b"first")
    assert reader.got == [b"first", b"first", b"second"]


def test_row_that_is_not_due_does_not_hold_its_key_and_never_goes_out_beside_it(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    reader = Reader(site, topic, settings=BY_KEY)
    publisher.publish(topic, b"later", key=[key], due=[site.machine.clock.now() + 10 * SECOND])
    grow(topic, 2)
    publisher.publish(topic, b"now", key=[key])
    assert reader.got == [b"now"]
    site.machine.run(10)
    assert reader.got == [b"now"]
    reader.ack(b"now")
    assert reader.got == [b"now", b"later"]


def test_order_that_is_asked_for_after_the_growth_is_kept_too(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    reader = Reader(site, topic)
    publisher.publish(topic, b"first", key=[key])
    grow(topic, 2)
    topic.update_subscription("audit", BY_KEY)
    publisher.publish(topic, b"second", key=[key])
    assert reader.got == [b"first"]
    reader.ack(b"first")
    assert reader.got == [b"first", b"second"]


def test_seek_to_before_the_growth_keeps_the_order_again(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    reader = Reader(site, topic, settings=BY_KEY)
    publisher.publish(topic, b"first", key=[key])
    grow(topic, 2)
    publisher.publish(topic, b"second", key=[key])
    reader.ack(b"first")
    reader.ack(b"second")
    for shard in (1, 0):
        topic.subscription("audit").seek(shard, 0)
    site.machine.run()
    # The new shard was sought first, so its row went out at once; then the old one, which waits for it.
    reader.ack(b"second")
    assert reader.got == [b"first", b"second", b"second", b"first"]


def test_rows_that_retention_dropped_hold_nobody_back(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(quota_full="drop")).now()
    key = key_that_moves(1, 2)
    publisher = Publisher(site)
    topic.subscribe("audit", BY_KEY)
    publisher.publish(topic, b"first", key=[key])
    grow(topic, 2)
    publisher.publish(topic, b"second", key=[key])
    topic.shards[0].roll()
    site.machine.run()
    topic.subscription("audit").drop_below(0, 1)
    topic.shards[0].drop_oldest()
    assert Reader(site, topic).got == [b"second"]


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic_over_growths_and_restarts_keeps_every_key_in_order(seed: int) -> None:
    random = Random(seed)
    site = Site(seed=seed)
    topic = site.node.create_topic("t", TopicSettings(shards=random.choice((1, 2, 3)))).now()
    run = random.choice((1, 3))
    settings = SubscriptionSettings(order="key", key_run=run)
    keys = [b"key %d" % n for n in range(random.choice((2, 5, 20)))]
    published: dict[bytes, list[bytes]] = {key: [] for key in keys}
    finished: set[bytes] = set()
    publisher = Publisher(site)
    readers = [Reader(site, topic, credit=random.choice((1, 3, 50)), settings=settings) for _ in range(2)]
    out: list[dict[bytes, int]] = [{} for _ in readers]
    count = 0

    def receive() -> None:
        for reader, held in zip(readers, out, strict=True):
            for body in reader.got:
                key = body.split(b"|")[0]
                before = published[key][: published[key].index(body)]
                missing = [each for each in before if each not in finished and each not in held]
                assert not missing, (body, missing)
                elsewhere = [
                    each for other in out if other is not held for each in other if each.startswith(key + b"|")
                ]
                assert not elsewhere, (body, elsewhere)
                held[body] = reader.ids[body]
                assert sum(each.startswith(key + b"|") for each in held) <= run
            reader.got.clear()

    for _ in range(120):
        what = random.random()
        if what < 0.4:
            chosen = [random.choice(keys) for _ in range(random.randint(1, 6))]
            bodies = []
            for key in chosen:
                count += 1
                bodies.append(b"%b|%d" % (key, count))
                published[key].append(bodies[-1])
            publisher.publish(topic, *bodies, key=list(chosen))
        elif what < 0.46 and len(topic.shards) < 12:
            grow(topic, len(topic.shards) + random.randint(1, 3))
        elif what < 0.5:
            site.start()
            topic = site.node.topic("t")
            publisher = Publisher(site)
            for held in out:
                held.clear()
            readers = [Reader(site, topic, credit=random.choice((1, 3, 50))) for _ in range(2)]
        else:
            number = random.randrange(2)
            held = out[number]
            some = [body for body in held if random.random() < 0.5]
            ids = [held[body] for body in some]
            if what < 0.9:
                for body in some:
                    finished.add(body)
                    del held[body]
                assert readers[number].seat.ack(ids) == []
            else:  # what comes after these of their keys comes back as well
                for body in some:
                    key, at = body.split(b"|")[0], published[body.split(b"|")[0]].index(body)
                    for later in published[key][at:]:
                        held.pop(later, None)
                readers[number].seat.release(ids, random.choice((0, 0, SECOND)))
        receive()
        site.machine.run(random.choice((0, 0, 1)))
        receive()
    site.machine.run(2)
    for _ in range(2000):
        receive()
        if len(finished) == count:
            break
        for reader, held in zip(readers, out, strict=True):
            finished.update(held)
            ids = list(held.values())
            held.clear()
            reader.seat.ack(ids)
        site.machine.run()
    assert len(finished) == count
    assert site.node.bugs == 0
