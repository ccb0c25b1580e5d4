"""Staging: batches that a task wrote and nobody committed yet (ruling 16). They are files that no reader looks at.

Owns a directory `staging` and the names in it; a node has one, and so has each topic that is not on its own disk
(`stages.py`). A stage is written by one thread of its own, so nothing here touches
the node's state but the tables of what is complete and what is being written. Knows nothing of commits.
Invariant: what is listed as complete is synced, and stays until it is removed or a day has passed; its check is looked
at before anything of it is read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from struct import Struct
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from penstock.disk import Disk, File, is_full
from penstock.errors import CorruptionError, Refusal
from penstock.log.kafka.store import AwayError

#: What nobody committed in this time never will be; after a restart it counts anew.
KEEP_NS = 24 * 3600 * 1_000_000_000
SUFFIX = ".arrows"
UNFINISHED = ".new"
#: The column that says where each row goes, and the key in the schema's metadata where all go to one topic.
TOPIC = "topic"
#: The key in the schema's metadata that says which shard rows without a key go to.
HOME = "home"
ATTEMPT = re.compile(r"[A-Za-z0-9_.-]{1,100}")
#: After the end of the Arrow stream, where its readers do not look: a word, and the CRC-32C of everything before it.
CHECK = Struct("<8sI")
CHECK_WORD = b"PENSTOCK"
#: Bytes that are checked at a time.
READ_BYTES = 1 << 20

_log = logging.getLogger(__name__)


def digest(name: str) -> str:
    """Return a name of a query or a topic as it stands in names of files and keys."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def name_of(query: str, batch: int, attempt: str) -> str:
    """Return the file name of one attempt."""
    if not query or len(query) > 1024:
        raise Refusal("bad_request", f"a query's name has 1 to 1024 characters, not {len(query)}")
    if batch < 0:
        raise Refusal("bad_request", f"the number of a batch is 0 or more, not {batch}")
    if not ATTEMPT.fullmatch(attempt):
        raise Refusal("bad_request", f"{attempt!r} is no name of an attempt: 1 to 100 letters, digits, _ . -")
    return f"{digest(query)}-{batch}-{attempt}{SUFFIX}"


def topic_of(schema: pa.Schema) -> str | None:
    """Return the one topic of a staged batch; None if each row has its own."""
    name = (schema.metadata or {}).get(TOPIC.encode())
    return name.decode() if name is not None else None


def home_of(schema: pa.Schema) -> int | None:
    """Return the shard, modulo the topic's, that rows without a key go to; None if nobody said."""
    home = (schema.metadata or {}).get(HOME.encode())
    return int(home) if home is not None else None


class Complete(NamedTuple):
    """An attempt that is whole."""

    since_ns: int
    #: Where all of it goes; None if each row says that itself.
    topic: str | None


class Staging:
    """The staged batches of one directory; its files have `mark` behind their names."""

    def __init__(self, disk: Disk, path: str, now_ns: int, mark: str = "") -> None:
        self._disk = disk
        self._path = path
        self._mark = mark
        self._complete: dict[str, Complete] = {}
        #: Being written, or written and not yet added, with the topic of each.
        self._begun: dict[str, str | None] = {}
        self._lock = Lock()
        self._is_made = disk.exists(path)
        for name in disk.list(path) if self._is_made else ():
            if name.endswith(SUFFIX + mark):
                self._find(name.removesuffix(mark), now_ns)
            else:  # its writer died with the node
                disk.remove(f"{path}/{name}")

    def _find(self, name: str, now_ns: int) -> None:
        file = self._disk.open(self._file(name))
        try:
            with pa.ipc.open_stream(pa.PythonFile(_Source(file), "r")) as reader:
                self._complete[name] = Complete(now_ns, topic_of(reader.schema))
        except AwayError:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            _log.error("%s/%s cannot be read and is left alone: %s", self._path, name, error)
        finally:
            file.close()

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}{self._mark}"

    def __len__(self) -> int:
        return len(self._complete)

    def has(self, name: str) -> bool:
        """Tell whether an attempt is complete."""
        return name in self._complete

    def is_begun(self, name: str) -> bool:
        """Tell whether an attempt is being written, or was and is not added yet."""
        return name in self._begun

    def topic(self, name: str) -> str | None:
        """Return the one topic of a complete attempt; None if its rows say it."""
        return self._complete[name].topic

    def writer(
        self, query: str, batch: int, attempt: str, topic: str | None, schema: pa.Schema, home: int | None = None
    ) -> Writer:
        """Begin an attempt of batches for one topic, or with a column that names it; for any thread."""
        name = name_of(query, batch, attempt)
        with self._lock:
            if self.has(name) or name in self._begun:
                being = "" if self.has(name) else "being "
                raise Refusal("conflict", f"attempt {attempt} of batch {batch} is {being}staged already")
            self._begun[name] = topic
            if not self._is_made:
                self._disk.make(self._path)
                self._is_made = True
        metadata = {TOPIC: topic} if topic is not None else {}
        if home is not None:
            metadata[HOME] = str(home)
        try:
            return Writer(self._disk, self._file(name), schema.with_metadata(metadata), lambda: self._end(name))
        except BaseException:
            self._end(name)
            raise

    def _end(self, name: str) -> None:
        with self._lock:
            self._begun.pop(name, None)

    def add(self, query: str, batch: int, attempt: str, now_ns: int) -> None:
        """Take note of an attempt whose writer finished."""
        name = name_of(query, batch, attempt)
        with self._lock:
            self._complete[name] = Complete(now_ns, self._begun.pop(name))

    def check(self, names: list[str]) -> None:
        """Refuse attempts that are not what was written; blocking."""
        for name in names:
            path = self._file(name)
            with closing(self._opened(path)) as file:
                _check(file, path)

    def batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield what an attempt wrote, in order; blocking. CorruptionError if it never will."""
        path = self._file(name)
        file = self._opened(path)
        try:
            _check(file, path)
            with pa.ipc.open_stream(pa.PythonFile(_Source(file), "r")) as reader:
                yield from reader
        except (OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, AwayError) or (isinstance(error, OSError) and error.errno is not None):
                raise  # the disk's word, not that of Arrow about what it read: another time it may be different
            raise CorruptionError(
                f"{path} is damaged, and the rows that were staged in it are lost: {error}"
            ) from error
        finally:
            file.close()

    def _opened(self, path: str) -> File:
        try:
            return self._disk.open(path)
        except FileNotFoundError:
            raise CorruptionError(f"{path} is gone, and the rows that were staged in it with it") from None

    def remove(self, names: list[str]) -> None:
        """Drop attempts; those that are not there are none."""
        for name in names:
            self._complete.pop(name, None)
            self._disk.remove(self._file(name))

    def of_query(self, query: str, topic: str | None, batch_max: int) -> list[str]:
        """Return the complete attempts of a query's batches up to one, for a topic."""
        start = digest(query) + "-"
        return [
            name
            for name, attempt in self._complete.items()
            if name.startswith(start) and attempt.topic == topic and int(name.split("-", 2)[1]) <= batch_max
        ]

    def sweep(self, now_ns: int, needed: set[str]) -> int:
        """Drop what nobody committed within a day; return how many attempts."""
        old = [
            name
            for name, attempt in self._complete.items()
            if now_ns - attempt.since_ns > KEEP_NS and name not in needed
        ]
        self.remove(old)
        return len(old)


class Writer:
    """One attempt being written, by one thread."""

    def __init__(self, disk: Disk, path: str, schema: pa.Schema, discarded: Callable[[], None]) -> None:
        self.rows = 0
        self.bytes = 0
        self._disk = disk
        self._path = path
        self._discarded = discarded
        self._ended = False
        self._gone = False
        disk.remove(path + UNFINISHED)
        self._file: File = disk.open(path + UNFINISHED, create=True)
        self._sink = _Sink(self._file)
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch; all of an attempt have one schema."""
        try:
            self._stream.write_batch(batch)
        except OSError as error:
            self.discard()
            raise _refusal(error) from error
        self.rows += len(batch)
        self.bytes += batch.nbytes

    def finish(self) -> None:
        """Make the attempt complete: synced, under its name. One without batches is complete too."""
        try:
            self._stream.close()
            self._file.append([CHECK.pack(CHECK_WORD, self._sink.crc)])
            self._file.sync()
            self._close()
            self._disk.rename(self._path + UNFINISHED, self._path)
            self._disk.sync_directory(self._path.rpartition("/")[0])
        except OSError as error:
            self.discard()
            raise _refusal(error) from error

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._gone:
            return  # the name may be another's by now
        self._gone = True
        self._close()
        self._disk.remove(self._path + UNFINISHED)
        self._discarded()

    def _close(self) -> None:
        if not self._ended:
            self._ended = True
            self._file.close()


def _check(file: File, path: str) -> None:
    """Refuse a file that is not what was written; one of a version that wrote no check is taken as it is."""
    end = file.size() - CHECK.size
    tail = file.read(max(end, 0), CHECK.size)
    if len(tail) < CHECK.size:
        raise CorruptionError(f"{path} is cut short, and the rows that were staged in it are lost")
    word, wanted = CHECK.unpack(tail)
    if word != CHECK_WORD:
        return
    found = 0
    for at in range(0, end, READ_BYTES):
        found = crc32c(file.read(at, min(READ_BYTES, end - at)), found)
    if found != wanted:
        raise CorruptionError(f"{path} is damaged: its check is wrong, and the rows that were staged in it are lost")


def _refusal(error: OSError) -> Refusal:
    if is_full(error):
        return Refusal("disk_full", f"no room to stage: {error.strerror or error}")
    return Refusal("disk_failed", f"what was staged is not safe on the disk ({error}): stage it again")


class _Sink:
    """A file of the disk as Arrow wants to write one."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        #: Of everything so far.
        self.crc = 0

    def write(self, data: bytes) -> int:
        self._file.append([data])
        self.crc = crc32c(data, self.crc)
        return len(data)

    def flush(self) -> None:
        """Arrow asks for it; what matters is the sync at the end."""

    def close(self) -> None:
        """The writer closes the file itself, after the sync."""


class _Source:
    """A file of the disk as Arrow wants to read one."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._at, self._file.size() - self._at if size < 0 else size)
        self._at += len(data)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """The reader closes the file itself."""
