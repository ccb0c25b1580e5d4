"""What a proof prints: one line per check, and an exit code that tells whether all of them held."""

from __future__ import annotations


class Checks:
    """The checks of one proof."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, held: bool, text: str, *witnesses: str) -> bool:
        """Print one check; the first few witnesses say where it did not hold."""
        print(f"{'ok  ' if held else 'FAIL'} {text}", flush=True)
        if not held:
            self.failed += 1
            for witness in witnesses[:5]:
                print(f"       {witness}", flush=True)
        return held

    def code(self) -> int:
        """Return the exit code."""
        return 1 if self.failed else 0
