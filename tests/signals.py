"""Processes that stand still."""

from __future__ import annotations

import os
import signal
import subprocess


def stand_still(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until it stands: the signal is only sent, and a last answer may still come after it."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
