"""What the kernel knows about its own clock.

One question to adjtimex(2), which needs no rights as long as nothing is set.
"""

from __future__ import annotations

import platform

#: "The clock is not synchronised", the value adjtimex returns then.
TIME_ERROR = 5
#: struct timex is 208 bytes on 64-bit Linux; a first field of 0 means: change nothing.
TIMEX_BYTES = 208


def kernel_says_synchronised() -> bool | None:
    """Tell whether a time server keeps this clock, None where the kernel cannot be asked."""
    import ctypes  # costs more than the rest of this package's imports together

    if platform.system() != "Linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # Room to spare, in case a C library's struct is larger.
    state = adjtimex(ctypes.create_string_buffer(2 * TIMEX_BYTES))
    return None if state < 0 else bool(state != TIME_ERROR)
