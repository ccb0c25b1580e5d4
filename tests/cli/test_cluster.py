"""What an operator sees of a cluster, and says where its slots shall be."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cli.program import Done, inside
from tests.cluster.member import joined
from tests.served import PATIENCE_S, Served


def test_an_operator_looks_at_a_cluster_moves_a_slot_and_drains_a_node(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:

        def said(*words: str) -> Done:
            return inside("cluster", *words, "--url", f"http://127.0.0.1:{served.ports['api.port']}", cwd=tmp_path)

        alone = said("status")
        assert (alone.code, alone.out) == (1, "")
        assert "there is no cluster: this node is alone, because cluster.name is not set" in alone.error
        assert "there is no cluster" in said("drain", "n1").error
        with joined(served):
            ends = time.monotonic() + PATIENCE_S
            while said("status", "--json").json["nodes"][0]["slots"] < 4:
                assert time.monotonic() < ends
            lines = said("status", "--slots").out.splitlines()
            assert lines[0].split() == ["node", "address", "slots", "weight", "state", "version", "since"]
            assert lines[1].split()[:5] == ["n1", "10.0.0.1:7075", "4", "1", "up"]
            assert lines[2] == "cluster blue, as n1 sees it: 4 slots"
            assert lines[3] == "slot 3: Kafka is away"
            assert lines[4].split() == ["slot", "node", "epoch", "pinned", "to"]
            assert [line.split()[:2] for line in lines[5:]] == [[str(slot), "n1"] for slot in range(4)]
            assert said("move", "2", "n1").out == "slot 2 goes to n1, and stays there while n1 lives\n"
            assert said("drain", "n1").out.startswith("n1 gives 4 slots away; ")
            shown = said("status").out
            assert "slot 2 is pinned to n1\n" in shown
            assert shown.splitlines()[1].split()[4] == "drained"
            assert said("undrain", "n1").out == "n1 gets its share again\n"
            assert said("move", "2", "--anywhere").out == "slot 2 is dealt like the others again\n"
            assert "pinned" not in said("status").out
            for words, code, why in (
                (("move", "2"), 2, "name the node that shall have the slot, or --anywhere"),
                (("move", "2", "n1", "--anywhere"), 2, "or --anywhere"),
                (("move", "9", "n1"), 1, "there is no slot 9; the cluster has slots 0 to 3"),
                (("drain", "n2"), 1, "there is no node n2 in the cluster"),
            ):
                refused = said(*words)
                assert (refused.code, why in refused.error) == (code, True)
