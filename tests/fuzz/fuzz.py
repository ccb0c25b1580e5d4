"""Everything a listener can be told, for as long as there is time; what breaks it is made as small as it can be."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from penstock.dialects.flight.actions import ACTIONS
from tests.fuzz.mutation import cuts, inputs
from tests.fuzz.samples import BY_PORT, COMMANDS
from tests.fuzz.victim import Victim

DOCUMENTS = "flight documents"
#: What can be fuzzed.
TARGETS = (*BY_PORT, DOCUMENTS)

#: Examples of one target before the next one has its turn, and how often all have it before there is a new node.
EXAMPLES = 100
ROUNDS = 10


def fuzz(target: str, victim: Victim, number: int, examples: int) -> None:
    """Try examples of one target; raises `Sick` with the smallest one that breaks the node."""
    if target == DOCUMENTS:
        case = given(inputs(COMMANDS), st.sampled_from(["info", "get", "put", "exchange", *ACTIONS]))(victim.order)
    else:
        case = given(inputs(BY_PORT[target]), cuts)(lambda data, places: victim.tell(target, data, places))
    chosen = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    seed(number)(chosen(case))()
    victim.check_well()


def fuzz_for(seconds: float, number: int, targets: tuple[str, ...], say: Callable[[str], None]) -> int:
    """Go round the targets until the time is over, now and then with a new node; return how many examples that were."""
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as path, Victim(Path(path) / "data") as victim:
            for _ in range(ROUNDS):
                for target in targets:
                    if time.monotonic() < end:
                        fuzz(target, victim, number, EXAMPLES)
                        rounds += 1
                number += 1
            say(f"up to seed {number}: {rounds * EXAMPLES} examples")
    return rounds * EXAMPLES
