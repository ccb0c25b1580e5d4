"""What the node tells of its memory."""

from __future__ import annotations

from pathlib import Path

from penstock.config import MemoryConfig
from tests.served import Served


def test_memory_is_told_by_part(tmp_path: Path) -> None:
    with Served(tmp_path / "data", memory=MemoryConfig(budget_bytes=128 << 20)) as served:
        served.post("topics", {"name": "fast", "settings": {"durability": "memory"}})
        served.publish("fast", "x" * 1000)
        told = served.get("memory").json
        assert told["max_bytes"] == 128 << 20
        assert told["resident_bytes"] > 1 << 20
        parts = {part["name"]: part for part in told["parts"]}
        assert list(parts) == ["body", "input", "output", "topic", "cache"]
        assert 1000 < parts["topic"]["bytes"] < parts["topic"]["max_bytes"] == 32 << 20
        assert (parts["body"]["bytes"], parts["body"]["refused"]) == (0, 0)
