"""What whoever publishes hears when the disk takes no more."""

from __future__ import annotations

from penstock.disk import is_full
from penstock.errors import Refusal


def refusal(path: str, error: OSError) -> Refusal:
    """Return why a message was not stored, by what the disk said."""
    if not is_full(error):
        text = f"{path} cannot be written ({error}): the message was not stored. Look at the disk."
        return Refusal("disk_failed", text)
    return Refusal(
        "disk_full",
        f"no space left in {path}: the message was not stored. Free some space there, "
        "lower retention_bytes, or move the data directory to a larger disk; publishing goes on by itself then.",
    )
