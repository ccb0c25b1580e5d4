"""Where a DataFrame goes: the options of `format("penstock")` for writing, checked, and the node they name.

Owns their names and what each may be. Knows nothing of rows. Sent to executors.
Invariant: a name or value that cannot be meant is an error that names the option and the nearest one there is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping

from penstock.client.connection import Access, Unreachable
from penstock.errors import ConfigError
from penstock.pipeline.options import NAMES as READ_NAMES
from penstock.pipeline.options import access_of, flag, known, number

#: Every option of the sink, as it is written.
NAMES = ("path", "url", "token", "tokenFile", "tlsRoots", "topic", "txnAppId", "txnVersion", "keepShards", "repeats")
#: Spark's own, which it hands to every sink.
SPARKS = ("checkpointLocation", "queryName")

NODE_FILE = "node.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What a writer was asked to do."""

    #: Without a url, the directory says where its node listens.
    access: Access
    path: str | None = None
    #: None: each row says it.
    topic: str | None = None
    #: (txnAppId, txnVersion): written once for all time.
    transaction: tuple[str, int] | None = None
    #: Rows without a key go to the shard that their column says.
    keep_shards: bool = False
    #: A batch that comes again after a crash may have other rows; those that were written first stay.
    any_rows: bool = False

    def once(self) -> tuple[str, int]:
        """Return the (query, batch) under which the node knows the transaction."""
        assert self.transaction is not None
        name, version = self.transaction
        # One application may write to several topics under one version, as `foreachBatch` does.
        return f"txn/{len(name)}/{name}/{self.topic or ''}", version

    def node(self) -> Access:
        """Return how to get to the node now: one that was restarted may listen elsewhere."""
        if self.path is None:
            return self.access
        found = running(self.path)
        if found is None:
            raise Unreachable(
                f"option path: no node runs on {self.path}; start one with penstock up --data {self.path}, "
                "or set option url to one elsewhere"
            )
        return self.access._replace(url=found)


def parsed(given: Mapping[str, str]) -> Target:
    """Return the options of a write; ConfigError names the one that cannot be used."""
    words = {_word(name): str(value).strip() for name, value in given.items()}
    path = re.sub(r"^file:(//)?(?=/)", "", words.get("path", "")) or None
    if (path is None) == (not words.get("url")):
        raise ConfigError("which node? Set option url, as grpc://host:7071, or option path to its data directory")
    # A directory's node is looked up later; its place is held by an address that is never used.
    access = access_of(words if path is None else {**words, "url": "grpc://127.0.0.1"})
    assert access is not None
    return Target(
        access=access,
        path=path,
        topic=_topic(words),
        transaction=_transaction(words),
        keep_shards=flag(words, "keepShards", False),
        any_rows=_repeats(words),
    )


def _word(name: str) -> str:
    """Return an option as it is written; one that is for reading is refused with what it is called here."""
    mine = (*NAMES, *SPARKS)
    lower = name.lower()
    if lower in map(str.lower, READ_NAMES) and lower not in map(str.lower, mine):
        hint = "did you mean topic?" if lower.startswith("subscribe") else f"for writing there are {', '.join(NAMES)}"
        raise ConfigError(f"option {known(name)} is for reading; {hint}")
    return known(name, mine)


def _topic(words: Mapping[str, str]) -> str | None:
    name = words.get("topic")
    if name is not None and not 1 <= len(name.encode()) <= 1024:
        raise ConfigError(f"option topic is {name!r}: the name of one topic, of 1 to 1024 bytes")
    return name


def _transaction(words: Mapping[str, str]) -> tuple[str, int] | None:
    name, version = words.get("txnAppId"), number(words, "txnVersion", 0)
    if (name is None) != (version is None):
        there, missing = ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
        raise ConfigError(f"option {there} needs option {missing}: together they name a write that is done once")
    if name is None or version is None:
        return None
    if not 1 <= len(name) <= 512:
        raise ConfigError(f"option txnAppId has {len(name)} characters: 1 to 512")
    return name, version


def _repeats(words: Mapping[str, str]) -> bool:
    text = words.get("repeats", "same").lower()
    if text not in ("same", "any"):
        raise ConfigError(f"option repeats is {words['repeats']!r}: same or any")
    return text == "any"


def running(path: str) -> str | None:
    """Return where the node of a data directory listens, None if none runs there."""
    try:
        with open(os.path.join(path, NODE_FILE), "rb") as file:
            values = json.load(file)
        url = str(values["flight"]) if values.get("flight") else None
        os.kill(int(values["pid"]), 0)
    except PermissionError:
        return url  # another user's, and alive
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return url
