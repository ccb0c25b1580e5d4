"""One change of a registry that does not always answer."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.clock import SECOND
from penstock.disk import LocalDisk
from penstock.errors import Refusal
from penstock.registry import EmbeddedRegistry, Entry
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt
from penstock.registry.registry import Lease, Proposal, UnknownOutcomeError
from tests.registry.parts import TurnClock


class Scripted(EmbeddedRegistry):
    """A registry that does with each proposal what comes next in a list, and shows nothing new before it answers."""

    fates: list[str]
    shown: dict[str, Entry]

    def get(self, key: str) -> Entry | None:
        return self.shown.get(key)

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        fate = self.fates.pop(0)
        if fate == "refused":
            return Answer.refused(Refusal("unavailable", "the registry is busy"))
        done = super().propose(puts, deletes, guards, lease)
        if fate == "answer lost":
            return Answer.refused(UnknownOutcomeError("no answer in time"))
        self.shown = self.list("")
        return done


def test_a_refusal_after_a_lost_answer_is_not_the_last_word(tmp_path: Path) -> None:
    clock = TurnClock()
    registry = Scripted.open(LocalDisk(), clock, str(tmp_path / "registry"))
    assert isinstance(registry, Scripted)
    registry.fates, registry.shown = ["answer lost", "refused", "answered"], {}
    answer = attempt(registry, clock, lambda: Draft("made", {"key": b"value"}, (), {"key": 0}))
    for _ in range(5):
        clock.advance(SECOND)
        clock.turn()
    assert answer.now() == "made"
    assert registry.fates == []
