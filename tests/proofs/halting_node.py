"""`penstock` with places in a commit where it can be made to stand still, so that a proof can kill it just there.

    python -m tests.proofs.halting_node DIRECTORY up ...

The node itself knows nothing of this: methods of its commits are wrapped before it starts. A method that is not there
any more is an error here, not silence.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock.cli.app import run
from penstock.commits import Commits, _Run
from tests.proofs.halts import Halts

#: In the order in which a commit comes to them: it is in the registry and nothing is appended; a part is appended;
#: all is appended and synced, and the registry does not say so yet; it says so, and the driver was not told.
JOURNALED, APPENDING, APPENDED, DONE = "journaled", "appending", "appended", "done"
#: A commit that another process began comes to this one instead, wherever it goes on.
RESUMED = "resumed"
PLACES = (JOURNALED, APPENDING, APPENDED, DONE, RESUMED)


def halt_at(halts: Halts) -> None:
    """Make commits pass by their places."""
    resume, start, finished = Commits.resume, Commits._start, Commits._finished
    append, finish = _Run._append, _Run._finish
    resuming = False
    resumed: list[_Run] = []

    def halting_resume(commits: Commits) -> None:
        nonlocal resuming
        resuming = True
        resume(commits)
        resuming = False

    def halting_start(commits: Commits, record: Any) -> _Run:
        if not resuming:
            halts.passing(JOURNALED)
        begun = start(commits, record)
        if resuming:
            resumed.append(begun)
        return begun

    def halting_append(commit: _Run, *arguments: Any) -> None:
        if commit in resumed:
            halts.passing(RESUMED)
        elif commit._touched:
            halts.passing(APPENDING)
        append(commit, *arguments)

    def halting_finish(commit: _Run) -> None:
        halts.passing(RESUMED if commit in resumed else APPENDED)
        finish(commit)

    def halting_finished(commits: Commits, record: Any) -> None:
        halts.passing(DONE)
        finished(commits, record)

    for owner, method, halting in (
        (Commits, resume, halting_resume),
        (Commits, start, halting_start),
        (Commits, finished, halting_finished),
        (_Run, append, halting_append),
        (_Run, finish, halting_finish),
    ):
        setattr(owner, method.__name__, halting)


if __name__ == "__main__":
    halt_at(Halts(Path(sys.argv[1])))
    sys.exit(run(sys.argv[2:]))
