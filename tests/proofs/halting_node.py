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
from penstock.transactions.transaction import Transaction
from penstock.transactions.transactions import Transactions
from tests.proofs.halts import Halts

#: In the order in which a commit comes to them: it is in the registry and nothing is appended; a part is appended;
#: all is appended and synced, and the registry does not say so yet; it says so, and the driver was not told.
JOURNALED, APPENDING, APPENDED, DONE = "journaled", "appending", "appended", "done"
#: A commit that another process began comes to this one instead, wherever it goes on.
RESUMED = "resumed"
PLACES = (JOURNALED, APPENDING, APPENDED, DONE, RESUMED)


def halt_at(halts: Halts) -> None:
    """Make commits pass by their places."""
    resume, start, finished = Transactions.resume, Transactions._start, Transactions._finished
    append, finish = Transaction._append, Transaction._finish
    resuming = False
    resumed: list[Transaction] = []

    def halting_resume(transactions: Transactions) -> None:
        nonlocal resuming
        resuming = True
        resume(transactions)
        resuming = False

    def halting_start(transactions: Transactions, record: Any) -> Transaction:
        if not resuming:
            halts.passing(JOURNALED)
        begun = start(transactions, record)
        if resuming:
            resumed.append(begun)
        return begun

    def halting_append(transaction: Transaction, *arguments: Any) -> None:
        if transaction in resumed:
            halts.passing(RESUMED)
        elif transaction._touched:
            halts.passing(APPENDING)
        append(transaction, *arguments)

    def halting_finish(transaction: Transaction) -> None:
        halts.passing(RESUMED if transaction in resumed else APPENDED)
        finish(transaction)

    def halting_finished(transactions: Transactions, record: Any) -> None:
        halts.passing(DONE)
        finished(transactions, record)

    for owner, method, halting in (
        (Transactions, resume, halting_resume),
        (Transactions, start, halting_start),
        (Transactions, finished, halting_finished),
        (Transaction, append, halting_append),
        (Transaction, finish, halting_finish),
    ):
        setattr(owner, method.__name__, halting)


if __name__ == "__main__":
    halt_at(Halts(Path(sys.argv[1])))
    sys.exit(run(sys.argv[2:]))
