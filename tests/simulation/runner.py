"""One seed from start to end, and the words for one that failed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from tests.simulation.history import Violation
from tests.simulation.queues.speech import DynamiqSpeech, SqsSpeech
from tests.simulation.speech import NSQ, Speech
from tests.simulation.world import Outcome, World


def failure_of(seed: int, *, trace: bool = False, speeches: Sequence[Speech] = ()) -> tuple[Outcome | None, str]:
    """Run a seed, with other dialects beside; return what it came to, and the report of its failure or nothing."""
    world = World(seed, trace=trace, speeches=(NSQ, SqsSpeech(), DynamiqSpeech(), *speeches))
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
