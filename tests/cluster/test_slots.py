"""Nodes share the slots of a cluster: one owner each, wherever nodes come, go, sleep or are cut off."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.cluster.places import SLOTS, About, Pin, SlotRecord, reachable
from penstock.config import ClusterConfig
from penstock.errors import ConfigError, Refusal
from penstock.registry.answer import Answer
from tests.cluster.nodes import LEASE_NS, Node, World
from tests.registry.far import Trouble

TROUBLE = Trouble(refused=0.03, request_lost=0.03, answer_lost=0.05, late=0.03)


def failed(world: World, answer: Answer[None]) -> str:
    with pytest.raises(ConfigError) as caught:
        world.answered(answer)
    return str(caught.value)


def test_nodes_that_start_together_are_dealt_to_once() -> None:
    world = World()
    nodes = [world.node(name) for name in ("a", "b", "c")]
    for node in nodes:
        node.slots.start()
    took = world.until(lambda: sorted(world.counts()) == [5, 5, 6])
    assert took < 2
    assert all({what for what, _ in node.told} == {"took"} for node in nodes)


def test_a_node_that_comes_gets_its_share_a_few_at_a_time_and_each_is_closed_first() -> None:
    world = World()
    first = world.joined("a")
    world.until(lambda: world.counts() == [16])
    second = world.joined("b", weight=3)
    while world.counts() != [4, 12]:
        world.run(0.01)
        assert len(first.slots.mine) + len(second.slots.mine) >= 12, "not all of them at once"
    gave = [slot for what, slot in first.told if what == "gave"]
    assert sorted(gave) == sorted(second.serves)
    assert ("lost", gave[0]) not in first.told
    assert second.slots.owner(gave[0]) == second.slots.nodes()[1]
    before = first.told[:]
    world.run(60)
    assert first.told == before, "nothing moves while nobody comes or goes"


def test_the_slots_of_a_killed_node_are_taken_after_its_lease_and_no_others_move() -> None:
    world = World()
    nodes = [world.joined(name) for name in ("a", "b", "c")]
    world.until(lambda: len(world.counts()) == 3)
    kept = [dict(node.serves) for node in nodes[1:]]
    nodes[0].kill()
    took = world.until(lambda: len(world.counts()) == 2)
    assert took < LEASE_NS / SECOND + 1
    assert all(before.items() <= node.serves.items() for before, node in zip(kept, nodes[1:], strict=True))


def test_a_node_that_was_paused_finds_its_slots_gone_when_it_wakes_up() -> None:
    world = World()
    first, second = world.joined("a"), world.joined("b")
    world.until(lambda: world.counts() == [8, 8])
    epochs = dict(first.serves)
    first.clock.pause()
    world.until(lambda: len(second.serves) == 16)
    assert not first.slots.mine
    first.clock.wake()
    world.until(lambda: world.counts() == [8, 8])
    assert [what for what, _ in first.told[-16:-8]] == ["lost"] * 8
    assert all(first.serves[slot] > epochs.get(slot, 0) for slot in first.serves)


def test_a_node_that_is_cut_off_loses_everything_by_its_own_clock(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    first, second = world.joined("a"), world.joined("b")
    world.until(lambda: world.counts() == [8, 8])
    first.registry.is_cut = True
    world.until(lambda: not first.serves, LEASE_NS / SECOND + 0.5)
    world.until(lambda: len(second.serves) == 16)
    world.run(60)
    assert caplog.text.count("this node is not in the cluster, because the registry does not hear it") == 1
    first.registry.heal()
    world.until(lambda: world.counts() == [8, 8])


def test_a_slot_that_cannot_be_served_is_taken_again_after_a_moment() -> None:
    world = World()
    node = world.joined("a")
    world.until(lambda: world.counts() == [16])
    del node.serves[5]
    node.slots.release(5)
    assert not node.slots.is_mine(5)
    assert 0.9 < world.until(lambda: world.counts() == [16]) < 2
    assert node.told[-1] == ("took", 5)


def test_a_node_that_stops_gives_everything_away_before_it_says_so() -> None:
    world = World()
    first, second = world.joined("a"), world.joined("b")
    world.until(lambda: world.counts() == [8, 8])
    world.answered(first.slots.drain())
    assert len(second.serves) == 16
    assert [what for what, _ in first.told[-8:]] == ["gave"] * 8
    world.answered(first.slots.close())
    assert world.keys("node/") == ["node/b"]
    world.answered(second.slots.drain())
    assert second.told[-1][0] == "gave", "nobody is left to take them"
    world.answered(second.slots.close())
    assert world.keys("") == ["about"]


def test_a_drained_node_is_empty_until_it_is_undrained_and_pins_hold_while_their_node_lives() -> None:
    world = World()
    first, second, third = (world.joined(name) for name in ("a", "b", "c"))
    world.until(lambda: len(world.counts()) == 3)
    world.answered(first.orders.drain("b"))
    world.until(lambda: world.counts() == [8, 0, 8])
    slot = next(iter(first.serves))
    world.answered(second.orders.move(slot, "c"))
    world.until(lambda: slot in third.serves)
    world.answered(third.orders.undrain("b"))
    world.until(lambda: sorted(world.counts()) == [5, 5, 6])
    assert slot in third.serves
    third.kill()
    world.until(lambda: world.counts() == [8, 8])
    again = world.joined("c")
    world.until(lambda: slot in again.serves)
    world.until(lambda: sorted(world.counts()) == [5, 5, 6])
    world.answered(first.orders.move(slot, ""))
    assert world.keys("pin/") == world.keys("drain/") == []


def test_orders_that_cannot_be_are_refused() -> None:
    world = World()
    node = world.joined("a")
    for order, said in (
        (node.orders.move(16, "a"), "slots 0 to 15"),
        (node.orders.move(1, "z"), "no node z .* there are a"),
        (node.orders.drain("z"), "no node z"),
    ):
        with pytest.raises(Refusal, match=said):
            order.now()


def test_garbage_is_counted_and_passed_over_and_what_nobody_stands_for_is_taken_at_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    dead = msgspec.msgpack.encode(SlotRecord(node="gone", life="x"))
    for key, value in (
        ("slot/3", b"\xff\xff"),
        ("slot/4", dead),
        ("slot/77777", dead),
        ("slot/x", b""),
        ("slot/-1", dead),
        ("node/z", b"{"),
        ("node/y", msgspec.msgpack.encode({"name": "z", "life": "q"})),
        ("pin/5", b"?"),
        ("pin/99", msgspec.msgpack.encode({"node": "a"})),
        ("what", b""),
    ):
        world.put(key, value)
    node = world.joined("a")
    world.until(lambda: len(node.serves) == 14)
    assert node.slots.places.unreadable == 7
    assert "slot/3" in caplog.text
    assert node.slots.nodes() == [node.slots.places.nodes["a"]]
    assert world.until(lambda: world.counts() == [16]) > LEASE_NS / SECOND
    world.put("slot/7", b"oops")
    world.until(lambda: ("lost", 7) in node.told)
    world.until(lambda: world.counts() == [16])
    world.put("node/a", b"oops")
    world.until(lambda: node.slots._is_member() and world.counts() == [16])


def test_two_clusters_do_not_share_a_prefix_and_the_registry_knows_how_many_slots_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.joined("a")
    said = failed(world, world.node("b", cluster="red").slots.start())
    assert 'cluster.name = "red": the registry holds cluster blue' in said
    assert "registry.prefix of its own" in said
    other = world.joined("b", slots=64)
    assert other.slots.count == 16
    assert "cluster.slots = 64: the cluster has had 16" in caplog.text
    assert world.keys("node/") == ["node/a", "node/b"]


@pytest.mark.parametrize(("number", "said"), [(0, "an older version"), (2, "a newer version")])
def test_a_node_of_another_format_is_refused(number: int, said: str) -> None:
    world = World()
    world.put("about", msgspec.msgpack.encode(About(name="blue", slots=16, format=number)))
    assert said in failed(world, world.node("a").slots.start())
    world.put("about", b"garbage")
    assert "cluster/about cannot be read" in failed(world, world.node("a").slots.start())
    assert world.keys("") == ["about"]


def test_two_nodes_with_one_name_are_one_too_many_unless_the_first_is_dead() -> None:
    world = World()
    first = world.joined("a")
    world.until(lambda: world.counts() == [16])
    second = world.node("a", port=7)
    said = failed(world, second.slots.start())
    assert "another node calls itself a in cluster blue (at 127.0.0.1:7075)" in said
    second.kill()
    first.kill()
    third = world.joined("a")
    world.until(lambda: world.counts() == [16])
    assert third.slots.nodes()[0].life == "life 2"


def test_a_node_that_is_started_again_on_its_own_disk_waits_for_nobody() -> None:
    world = World()
    first, second = world.joined("a", disk="d1"), world.joined("b", disk="d2")
    world.until(lambda: world.counts() == [8, 8])
    kept, epochs = dict(second.serves), dict(first.serves)
    first.kill()
    again = world.joined("a", disk="d1")
    assert world.until(lambda: world.counts() == [8, 8]) < 2 < LEASE_NS / SECOND
    assert second.serves == kept
    assert again.serves.keys() == epochs.keys()
    assert all(again.serves[slot] > epochs[slot] for slot in epochs)
    world.run(2 * LEASE_NS / SECOND)
    assert world.counts() == [8, 8], "the end of the old leases takes nothing with it"
    assert "lost" not in {what for what, _ in again.told}


def test_a_node_whose_name_was_taken_while_it_slept_stays_out_and_says_so() -> None:
    world = World()
    first = world.joined("a")
    first.clock.pause()
    second = world.joined("a", port=7)
    first.clock.wake()
    world.until(lambda: first.slots.problem)
    assert "another node has called itself a (at 127.0.0.1:7)" in first.slots.problem
    world.until(lambda: len(second.serves) == 16)
    assert not first.serves
    second.kill()
    world.until(lambda: len(first.serves) == 16)
    assert not first.slots.problem


def test_others_hear_where_clients_reach_a_node() -> None:
    world = World()
    first, second = world.joined("a"), world.joined("b")
    first.slots.say({"nsq": "10.0.0.1:4150"})
    world.until(lambda: second.slots.nodes()[0].listeners == {"nsq": "10.0.0.1:4150"})
    first.registry.is_cut = True
    world.until(lambda: len(second.slots.nodes()) == 1)
    first.registry.heal()
    world.until(lambda: len(second.slots.nodes()) == 2)
    assert second.slots.nodes()[0].listeners == {"nsq": "10.0.0.1:4150"}


def test_what_listens_everywhere_is_reached_where_other_nodes_are_told() -> None:
    listeners = {"nsq.tcp_port": "0.0.0.0:4150", "api.port": "127.0.0.1:7070", "cluster.port": "0.0.0.0:8075"}
    told = reachable(ClusterConfig(address="0.0.0.0", advertise="10.0.0.1:7075"), listeners)
    assert told == ("10.0.0.1:7075", {**listeners, "nsq.tcp_port": "10.0.0.1:4150", "cluster.port": "10.0.0.1:8075"})
    address, _ = reachable(ClusterConfig(), {"cluster.port": "127.0.0.1:40123"})
    assert address == "127.0.0.1:40123", "with an offset, or any free port"
    assert reachable(ClusterConfig(address="::1"), {"nsq.tcp_port": ":::4150"}) == (
        "[::1]:7075",
        {"nsq.tcp_port": "[::1]:4150"},
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_slot_never_belongs_to_two_nodes_whoever_comes_goes_sleeps_or_is_cut_off(seed: int) -> None:
    random = Random(seed)
    world = World(trouble=TROUBLE, seed=seed)
    names = ["a", "b", "c", "d"]
    for name in names[:3]:
        world.node(name).slots.start()
    for _ in range(40):
        node: Node = random.choice(world.live)
        match random.randrange(8):
            case 0 if len(world.live) > 1:
                node.kill()
            case 1:
                world.node(random.choice(names)).slots.start()
            case 2:  # on a disk that only the dead have had
                name = random.choice(names)
                if name not in {each.name for each in world.live}:
                    world.node(name, disk=f"disk of {name}").slots.start()
            case 3 if not node.clock.paused:
                node.clock.pause()
            case 4 if node.clock.paused:
                node.clock.wake()
            case 5:
                node.registry.is_cut = True
            case 6:
                node.registry.heal()
            case 7:
                for slot in list(node.serves)[:2]:
                    del node.serves[slot]
                    node.slots.release(slot)
            case _:
                pass
        world.run(random.random() * 4)
    world.trouble = Trouble()
    for node in world.live:
        node.registry.trouble = Trouble()
        node.registry.heal()
        if node.clock.paused:
            node.clock.wake()
    world.run(30)
    members = [node for node in world.live if not node.slots.problem and not node.slots._closed]
    for node in world.live:
        if node not in members:
            assert not node.serves
            node.kill()
    world.joined("e")
    world.until(lambda: world.counts() and max(world.counts()) - min(world.counts()) <= 1)


def test_a_slot_that_was_lost_while_it_was_given_up_and_came_again_is_given_up_once() -> None:
    world = World()
    first, second = world.joined("a"), world.joined("b")
    world.until(world.counts)
    slot = min(first.serves)
    asked: list[int] = []
    give_up = first.slots._give_up

    def counted(number: int) -> Answer[None]:
        asked.append(first.slots.mine[number])
        return give_up(number)

    first.slots._give_up = counted
    first.closing_ns = 20 * SECOND
    world.put(f"pin/{slot}", msgspec.msgpack.encode(Pin(node="b")))
    world.until(lambda: len(asked) == 1)
    world.put(f"pin/{slot}", msgspec.msgpack.encode(Pin(node="a")))
    world.run(1)
    world.server.propose({}, [f"{SLOTS}{slot}"]).now()
    world.until(lambda: slot in first.slots.mine and first.slots.mine[slot] != asked[0])
    world.run(5)
    world.put(f"pin/{slot}", msgspec.msgpack.encode(Pin(node="b")))
    world.until(lambda: slot in second.serves)
    assert len(asked) == len(set(asked)) == 2
