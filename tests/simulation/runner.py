"""One seed from start to end, and the words for one that failed."""

from __future__ import annotations

import traceback

from tests.simulation.history import Violation
from tests.simulation.world import Outcome, World


def failure_of(seed: int, *, trace: bool = False) -> tuple[Outcome | None, str]:
    """Run a seed; return what it came to, and the report of its failure or nothing."""
    world = World(seed, trace=trace)
    try:
        return world.run(), ""
    except Violation as violation:
        return None, _report(world, f"broke a promise — {violation}")
    except Exception:
        return None, _report(world, f"failed with an exception\n{traceback.format_exc()}")


def _report(world: World, what: str) -> str:
    lines = [f"seed {world.seed} {what}", f"the last {len(world.history.last)} events:", *world.history.last]
    lines.append(f"again: python -m tests.simulation --seed {world.seed} --trace")
    return "\n".join(lines)
