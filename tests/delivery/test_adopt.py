from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nsq.parts import Broker


@pytest.mark.parametrize("killed", [False, True])
def test_rows_that_another_broker_began_go_on_as_it_left_them(tmp_path: Path, killed: bool) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.obtain("orders").now()
    subscription = topic.create_subscription("audit").now()
    broker.client().pub("orders", *(b"%d" % number for number in range(8)))
    wanted = np.array([True, False, True, False, True])
    subscription.cursors[0].adopt(wanted, np.array([0, 9, 3, 0, 0]))
    subscription.flush()
    assert (subscription.depth(), subscription.counts()["removed"]) == (6, 2)
    if killed:
        broker.kill()
        subscription = broker.node.topic("orders").subscription("audit")
        assert (subscription.depth(), subscription.counts()["removed"]) == (6, 2)
    client = broker.client()
    client.sub("orders", "audit", rdy=10)
    got = client.messages()
    assert {message.body: message.attempts for message in got} == {b"0": 1, b"2": 4, b"4": 1, b"5": 1, b"6": 1, b"7": 1}
    client.fin(*got)
    counts = subscription.counts()
    assert (counts["passed"], counts["acked"], counts["removed"], counts["held"]) == (8, 6, 2, 0)
