"""The catalog: names, numbers and the routing mapping, over an embedded registry."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.disk import LocalDisk
from penstock.errors import Refusal
from penstock.m3 import routing
from penstock.registry import Catalog, EmbeddedRegistry, RoutingMapping
from penstock.registry.catalog import MAPPING, REMOVE_KEYS_MAX
from penstock.registry.records import encoded
from penstock.settings import SubscriptionSettings, TopicSettings, TrafficSettings
from tests.registry.parts import TurnClock, delete, put

TOPIC = TopicSettings()
SUBSCRIPTION = SubscriptionSettings()
STARTS = (0,)


class House:
    """A catalog that can be reopened from disk, as after a crash."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "registry")
        self.clock = TurnClock()
        self.seed = 0

    def open(self) -> Catalog:
        self.seed += 1
        registry = EmbeddedRegistry.open(LocalDisk(), self.clock, self.path)
        return Catalog(registry, self.clock, Random(self.seed))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def catalog(house: House) -> Catalog:
    return house.open()


@contextmanager
def refusal(code: str, text: str = "") -> Iterator[None]:
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.code == code
    assert text in str(caught.value)


def test_a_topic_is_there_after_a_restart(house: House) -> None:
    settings = TopicSettings(shards=3, durability="fsync")
    made = house.open().create_topic("orders/eu ü", settings).now()
    assert made.number == 1
    assert made.orphan_from == (0, 0, 0)
    assert made.gate is None
    assert made.settings == settings
    assert made.created_ns == house.clock.time_ns
    again = house.open()
    assert again.topic("orders/eu ü") == made
    assert again.topics() == [made]
    assert again.topic("other") is None


def test_topics_are_listed_by_name(catalog: Catalog) -> None:
    for name in ("b", "a", "c"):
        catalog.create_topic(name, TOPIC).now()
    assert [topic.name for topic in catalog.topics()] == ["a", "b", "c"]


def test_a_name_is_taken_once(catalog: Catalog) -> None:
    catalog.create_topic("t", TOPIC).now()
    with refusal("conflict", "topic t exists already"):
        catalog.create_topic("t", TOPIC).now()


def test_numbers_and_incarnations_are_never_given_twice(house: House) -> None:
    numbers, incarnations = set(), set()
    for _ in range(20):
        catalog = house.open()
        topic = catalog.create_topic("t", TOPIC).now()
        subscription = catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()
        numbers.add((topic.number, subscription.number))
        incarnations.add(topic.incarnation)
        catalog.delete_topic("t").now()
    assert len({topic for topic, _ in numbers}) == len({sub for _, sub in numbers}) == len(incarnations) == 20


def test_the_random_source_decides_the_incarnation(tmp_path: Path) -> None:
    made = [House(tmp_path / name).open().create_topic("t", TOPIC).now().incarnation for name in ("one", "two")]
    assert made[0] == made[1]
    assert 0 <= made[0] < 1 << 63


@pytest.mark.parametrize("name", ["", "x" * 1025, "ü" * 513, "a\nb", "\x00", "\x7f", "\x85", "\ud800"])
def test_a_name_nobody_can_carry_is_refused(catalog: Catalog, name: str) -> None:
    with refusal("bad_name"):
        catalog.create_topic(name, TOPIC).now()
    topic = catalog.create_topic("good", TOPIC).now()
    with refusal("bad_name"):
        catalog.create_subscription(topic, name, SUBSCRIPTION, STARTS).now()


@given(st.text(min_size=1, max_size=1100))
def test_any_other_name_is_kept_as_it_is(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    house = House(tmp_path_factory.mktemp("names"))
    try:
        house.open().create_topic(name, TOPIC).now()
    except Refusal as error:
        assert error.code == "bad_name"
    else:
        assert [topic.name for topic in house.open().topics()] == [name]


def test_only_what_is_given_changes(house: House) -> None:
    catalog = house.open()
    made = catalog.create_topic("t", TopicSettings(shards=2)).now()
    paused = TopicSettings(shards=2, paused=True)
    catalog.update_topic("t", settings=paused, gate=(5, 6)).now()
    catalog.update_topic("t", orphan_from=[7, 8]).now()
    changed = house.open().topic("t")
    assert changed is not None
    assert (changed.settings, changed.gate, changed.orphan_from) == (paused, (5, 6), (7, 8))
    assert (changed.number, changed.incarnation, changed.created_ns) == (made.number, made.incarnation, made.created_ns)
    catalog.update_topic("t", gate=None).now()
    assert catalog.update_topic("t").now().gate is None


def test_a_change_that_changes_nothing_writes_nothing(catalog: Catalog) -> None:
    topic = catalog.create_topic("t", TOPIC).now()
    catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()
    catalog.set_mapping({"a": 1}).now()
    before = catalog.registry.revision
    catalog.update_topic("t", settings=TOPIC).now()
    catalog.update_subscription(topic, "s", SUBSCRIPTION).now()
    catalog.set_mapping({"a": 1}).now()
    assert catalog.registry.revision == before


def test_settings_that_cannot_work_are_refused(catalog: Catalog) -> None:
    topic = catalog.create_topic("t", TOPIC).now()
    for settings in (TopicSettings(shards=0), TopicSettings(shards=40000), TopicSettings(rate=-1)):
        with refusal("bad_request"):
            catalog.create_topic("other", settings).now()
    with refusal("conflict", "topic t has 1 shards by now"):
        catalog.update_topic("t", settings=TopicSettings(shards=2)).now()
    for wrong in (SubscriptionSettings(max_attempts=-1), SubscriptionSettings(lease_ns=2, lease_max_ns=1)):
        with refusal("bad_request"):
            catalog.create_subscription(topic, "s", wrong, STARTS).now()
    with refusal("bad_name", "dead-letter topic"):
        catalog.create_subscription(topic, "s", SubscriptionSettings(dead_letter="\n"), STARTS).now()
    for offsets in ((1, 2), (-1,), ()):
        with refusal("bad_offset"):
            catalog.update_topic("t", orphan_from=offsets).now()
        with refusal("bad_offset"):
            catalog.update_topic("t", gate=offsets).now()
        with refusal("bad_offset"):
            catalog.create_subscription(topic, "s", SUBSCRIPTION, offsets).now()


def test_what_is_not_there_is_not_found(catalog: Catalog) -> None:
    topic = catalog.create_topic("t", TOPIC).now()
    with refusal("not_found"):
        catalog.update_topic("none", settings=TOPIC).now()
    with refusal("not_found"):
        catalog.delete_topic("none").now()
    with refusal("not_found"):
        catalog.update_subscription(topic, "none", SUBSCRIPTION).now()
    with refusal("not_found"):
        catalog.delete_subscription(topic, "none").now()


def test_a_subscription_is_there_after_a_restart(house: House) -> None:
    catalog = house.open()
    topic, other = catalog.create_topic("t", TOPIC).now(), catalog.create_topic("t2", TOPIC).now()
    traffic = TrafficSettings(allowed=("live",), is_default=True)
    made = catalog.create_subscription(topic, "s/1", SubscriptionSettings(traffic=traffic, max_attempts=5), (41,)).now()
    with refusal("conflict"):
        catalog.create_subscription(topic, "s/1", SUBSCRIPTION, STARTS).now()
    elsewhere = catalog.create_subscription(other, "s/1", SUBSCRIPTION, STARTS).now()
    again = house.open()
    assert again.subscriptions(topic) == [made]
    assert made.starts == (41,)
    assert again.subscription(other, "s/1") == elsewhere
    changed = again.update_subscription(topic, "s/1", SubscriptionSettings(paused=True)).now()
    assert changed.number == made.number
    assert house.open().subscription(topic, "s/1") == changed
    assert again.delete_subscription(topic, "s/1").now() == changed
    assert house.open().subscriptions(topic) == []


def test_one_topic_number_is_no_prefix_of_another(catalog: Catalog) -> None:
    topics = [catalog.create_topic(str(number), TOPIC).now() for number in range(12)]
    for topic in topics:
        catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()
    assert topics[0].number == 1
    assert topics[10].number == 11
    assert len(catalog.subscriptions(topics[0])) == 1


def test_a_deleted_topic_takes_its_subscriptions_along(catalog: Catalog) -> None:
    topic = catalog.create_topic("t", TOPIC).now()
    catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()
    assert catalog.delete_topic("t").now() == topic
    successor = catalog.create_topic("t", TOPIC).now()
    assert catalog.subscriptions(successor) == []
    with refusal("not_found", "there is no topic t any more"):
        catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()


def test_a_deleted_topic_is_remembered_in_the_very_step_that_removes_it(house: House) -> None:
    catalog = house.open()
    topic, kept = catalog.create_topic("t", TOPIC).now(), catalog.create_topic("kept", TOPIC).now()
    catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()
    catalog.create_subscription(kept, "s", SUBSCRIPTION, STARTS).now()
    before = catalog.registry.revision
    catalog.delete_topic("t").now()
    assert catalog.registry.revision == before + 1
    again = house.open()
    assert [(each.name, each.number, each.incarnation) for each in again.deleted()] == [("t", 1, topic.incarnation)]
    again.forget_deleted([1]).now()
    assert house.open().deleted() == []
    assert len(house.open().subscriptions(kept)) == 1


def test_a_topic_of_many_subscriptions_is_deleted_with_all_of_them(house: House) -> None:
    catalog = house.open()
    topic = catalog.create_topic("t", TOPIC).now()
    for number in range(REMOVE_KEYS_MAX + 50):
        catalog.create_subscription(topic, f"s{number}", SUBSCRIPTION, STARTS).now()
    catalog.delete_topic("t").now()
    catalog.forget_deleted([1]).now()
    assert house.open().subscriptions(topic) == []


def test_what_a_crash_left_of_many_subscriptions_is_forgotten_with_their_topic(house: House) -> None:
    catalog = house.open()
    topic = catalog.create_topic("t", TOPIC).now()
    record = catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now()
    catalog.delete_topic("t").now()
    put(catalog.registry, "subscription/1/s", encoded(record))
    again = house.open()
    again.forget_deleted([1]).now()
    assert list(again.registry.list("")) == ["counter/subscription", "counter/topic"]


def test_numbers_seen_on_disk_are_not_given_again(catalog: Catalog) -> None:
    topic = catalog.create_topic("t", TOPIC).now()
    catalog.counters.begin_after(7, 9)
    assert catalog.create_topic("u", TOPIC).now().number == 8
    assert catalog.create_subscription(topic, "s", SUBSCRIPTION, STARTS).now().number == 10


def test_a_record_of_another_version_is_named(catalog: Catalog) -> None:
    put(catalog.registry, "topic/t", b"\x81\xa3new\x01")
    with pytest.raises(Refusal, match="registry entry topic/t cannot be read"):
        catalog.topic("t")
    for change in (catalog.update_topic("t", is_made=True), catalog.delete_topic("t")):
        with pytest.raises(Refusal, match="registry entry topic/t cannot be read"):
            change.now()


def test_what_cannot_be_read_is_passed_over_in_lists_and_told_until_it_is_right(catalog: Catalog) -> None:
    made = catalog.create_topic("t", TopicSettings()).now()
    entry = catalog.registry.get("topic/t")
    assert entry is not None
    put(catalog.registry, "topic/u", entry.value)
    put(catalog.registry, "topic/v", b"garbage")
    put(catalog.registry, "deleted/7", b"garbage")
    assert (catalog.topics(), catalog.deleted(), catalog.known("v")) == ([made], [], None)
    assert list(catalog.unreadable()) == ["deleted/7", "topic/u", "topic/v"]
    assert "topic/u holds the record of another topic, t" in catalog.problems()[1]
    catalog.remove(["topic/u", "deleted/7"]).now()
    put(catalog.registry, "topic/v", b"other garbage")
    assert list(catalog.unreadable()) == []
    assert catalog.topics() == [made]
    assert list(catalog.unreadable()) == ["topic/v"]


# The routing mapping


def test_without_a_mapping_there_are_no_types(catalog: Catalog) -> None:
    assert catalog.mapping() == RoutingMapping()


def test_a_mapping_is_there_after_a_restart(house: House) -> None:
    house.open().set_mapping({"live": 0, "test": 63}).now()
    assert house.open().mapping().traffic_types == {"live": 0, "test": 63}


def test_every_problem_of_a_mapping_is_reported_and_the_old_one_stays(catalog: Catalog) -> None:
    catalog.set_mapping({"live": 0}).now()
    with pytest.raises(Refusal) as caught:
        catalog.set_mapping({"a": 64, "b": -1, "c": 2, "d": 2, "": 3}).now()
    assert str(caught.value) == (
        "the routing mapping cannot be used: '' is no traffic type name; a is bit 64; bits are 0 to 63; "
        "b is bit -1; bits are 0 to 63; bit 2 is given to c and d"
    )
    assert caught.value.code == "bad_request"
    assert catalog.mapping().traffic_types == {"live": 0}


@given(st.dictionaries(st.text(max_size=3), st.integers(-3, 70) | st.booleans(), max_size=6))
def test_a_mapping_without_problems_gives_each_name_a_bit_of_its_own(types: dict[str, int]) -> None:
    bits = list(types.values())
    sound = all(type(bit) is int and 0 <= bit < 64 for bit in bits) and len(set(bits)) == len(bits)
    if not routing.problems(types):
        assert sound
    elif sound:
        assert any(not name or not name.isprintable() for name in types)


def test_names_may_be_added_and_removed(catalog: Catalog) -> None:
    catalog.set_mapping({"live": 0}).now()
    catalog.set_mapping({"live": 0, "test": 1}).now()
    catalog.set_mapping({"test": 1}).now()
    assert catalog.mapping().traffic_types == {"test": 1}


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"live": 5, "test": 1}, "live moves from bit 0 to 5"),
        ({"live": 1, "test": 0}, "live moves from bit 0 to 1; test moves from bit 1 to 0"),
        ({"live": 0, "shadow": 1}, "bit 1 of test is reused for shadow"),
    ],
)
def test_moving_or_reusing_a_bit_needs_force(catalog: Catalog, types: dict[str, int], said: str) -> None:
    catalog.set_mapping({"live": 0, "test": 1}).now()
    with refusal("conflict", said):
        catalog.set_mapping(types).now()
    assert catalog.mapping().traffic_types == {"live": 0, "test": 1}
    assert catalog.set_mapping(types, force=True).now().traffic_types == types
    assert catalog.mapping().traffic_types == types


def test_the_bit_of_a_removed_type_is_not_free(catalog: Catalog) -> None:
    catalog.set_mapping({"live": 0, "test": 1}).now()
    catalog.set_mapping({"live": 0}).now()
    with refusal("conflict", "bit 1 of test is reused for shadow"):
        catalog.set_mapping({"live": 0, "shadow": 1}).now()
    with refusal("conflict", "test moves from bit 1 to 2"):
        catalog.set_mapping({"live": 0, "test": 2}).now()
    assert catalog.set_mapping({"live": 0, "test": 1}).now().retired == {}


def test_a_forced_bit_belongs_to_its_new_type(catalog: Catalog) -> None:
    catalog.set_mapping({"test": 1}).now()
    catalog.set_mapping({"shadow": 1}, force=True).now()
    assert catalog.mapping() == RoutingMapping(traffic_types={"shadow": 1})
    catalog.set_mapping({"shadow": 1, "live": 0}).now()


def test_a_watched_mapping_is_reported_without_a_restart(house: House) -> None:
    catalog = house.open()
    catalog.set_mapping({"live": 0}).now()
    seen: list[dict[str, int]] = []
    cancel = catalog.watch_mapping(lambda mapping: seen.append(mapping.traffic_types))
    house.clock.turn()
    assert seen == []
    catalog.set_mapping({"live": 0, "test": 1}).now()
    house.clock.turn()
    assert seen == [{"live": 0, "test": 1}]
    delete(catalog.registry, MAPPING)
    house.clock.turn()
    assert seen[1:] == [{}]
    cancel()
    catalog.set_mapping({"live": 0}).now()
    house.clock.turn()
    assert len(seen) == 2


def test_a_mapping_that_cannot_be_read_is_logged_and_skipped(house: House, caplog: pytest.LogCaptureFixture) -> None:
    catalog = house.open()
    seen: list[RoutingMapping] = []
    catalog.watch_mapping(seen.append)
    put(catalog.registry, MAPPING, b"garbage")
    house.clock.turn()
    assert seen == []
    assert "routing/mapping cannot be read" in caplog.text
