"""What a dialect is to the rest: a row of a table. Whoever configures, starts, shows or ends dialects reads the row.

A row is cheap to import: what a running dialect needs is imported by its `start`. The admin API has such a row, too.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

from penstock.errors import Refusal, hint

if TYPE_CHECKING:
    from penstock.config import Config, Endpoint, Section
    from penstock.node.node import Node
    from penstock.settings import Measure, TopicSettings


Labels: TypeAlias = Mapping[str, str]


class Bound:
    """An endpoint that is had."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket | None) -> None:
        self.endpoint = endpoint
        #: Bound, and listening from the start of the dialect on; None where its server can only bind by itself (gRPC).
        self.sock = sock
        #: The port it got; 0 for a socket in the file system. A server that binds by itself says here which one.
        self.port: int = endpoint.port if sock is None or endpoint.is_path else sock.getsockname()[1]

    def taken(self) -> socket.socket:
        """Return the socket; its owner from now on is the caller."""
        if self.sock is None:
            raise RuntimeError(f"{self.endpoint.key} has no socket of ours")
        return self.sock

    @property
    def place(self) -> str:
        """Where clients find it."""
        return self.endpoint.place(self.port)


class Sample(NamedTuple):
    """One figure of a dialect; outside its name begins with the dialect's."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    value: float
    labels: Mapping[str, str] = {}


class Peer(NamedTuple):
    """Somebody who is connected."""

    #: Where it is, like 10.0.0.7:50412.
    address: str
    #: The key of the endpoint it came to.
    listener: str
    #: What it calls itself, if it does.
    name: str = ""
    connected_ns: int = 0
    #: What it receives, if it does.
    topic: str = ""
    subscription: str = ""
    in_flight: int = 0


class Running(Protocol):
    """A dialect at work."""

    async def drain(self) -> None:
        """Let nobody new in; those who hold messages may still finish them."""

    async def close(self) -> None:
        """Hang up on everybody; afterwards nothing of it is left."""

    def samples(self) -> Iterable[Sample]:
        """Return its figures."""

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""


@runtime_checkable
class Hindered(Protocol):
    """A dialect at work that may be held back by something outside the node."""

    def hindrances(self) -> list[str]:
        """Return what holds it back, a sentence each; the node is ready all the same."""


class Families(Protocol):
    """Where families of metrics are written."""

    def family(
        self, name: str, kind: Literal["counter", "gauge"], text: str, samples: Iterable[tuple[Labels, float]]
    ) -> None:
        """Add one metric; a sample is its labels and its value."""

    def histogram(
        self, name: str, text: str, bounds: Iterable[float], found: Iterable[tuple[Labels, Iterable[int], float]]
    ) -> None:
        """Add one histogram: by labels the counts between the bounds, and the sum."""


@runtime_checkable
class Described(Protocol):
    """A dialect at work with metrics that samples cannot tell: histograms, or names that others gave them."""

    def describe(self, out: Families, *, seed_names: bool) -> None:
        """Write them; with `seed_names` also under those others know."""


class Choices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a dialect lets people choose of a topic; kept in the topic's settings under the dialect's name."""

    def check(self, before: Self | None) -> None:
        """Refuse what cannot be, or cannot follow what a topic had before."""

    def measure(self) -> Measure | None:
        """Return what rows of such a topic weigh; None where the dialect does not speak of byte positions."""
        return None


class Dialect(NamedTuple):
    """One row of the table."""

    name: str
    #: Its section of the configuration, which has its name.
    config: type[Section]
    #: Refuses what is well formed and still cannot work.
    check: Callable[[Config], None]
    #: Where it listens; none while it is switched off.
    endpoints: Callable[[Config], Sequence[Endpoint]]
    #: Begins to serve on what was bound, by the endpoints' keys.
    start: Callable[[Node, Config, Mapping[str, Bound]], Awaitable[Running]]
    #: What it lets people choose of a topic, if anything.
    choices: type[Choices] | None = None
    #: Whether it is started; without this, if it listens somewhere. A relay dials, and listens nowhere.
    is_on: Callable[[Config], bool] | None = None
    #: Whether it takes messages elsewhere: it ends once nothing comes in any more, so that it has had all of it.
    is_way_out: bool = False
    #: What it keeps in which zones of etcd: (zone, what).
    zones: Callable[[Config], Iterable[tuple[str, str]]] = lambda _: ()

    def starts(self, config: Config) -> bool:
        """Tell whether it is to be started."""
        return self.is_on(config) if self.is_on is not None else bool(self.endpoints(config))


C = TypeVar("C", bound=Choices)


class Chosen:
    """What the settings of one topic say to each dialect."""

    def __init__(self, settings: TopicSettings, dialects: Iterable[Dialect]) -> None:
        self._parts: dict[type[Choices], Choices] = {}
        for dialect in dialects:
            if dialect.choices is not None and dialect.name in settings.dialects:
                try:
                    part = msgspec.convert(settings.dialects[dialect.name], dialect.choices)
                except msgspec.ValidationError as error:
                    raise Refusal("bad_request", f"settings of {dialect.name} cannot be used: {error}") from None
                self._parts[dialect.choices] = part

    def of(self, kind: type[C]) -> C:
        """Return what it says to the dialect with these choices."""
        found = self._parts.get(kind)
        return found if isinstance(found, kind) else kind()


def chosen(settings: TopicSettings, dialects: Sequence[Dialect], before: TopicSettings | None = None) -> Chosen:
    """Return what new settings of a topic say to each dialect; Refusal where one cannot use it."""
    known = [dialect.name for dialect in dialects if dialect.choices is not None]
    for name in settings.dialects:
        if name not in known and (before is None or name not in before.dialects):
            raise Refusal(
                "bad_request", f"there is no dialect {name} with settings; {hint(name, known, 'leave it out')}"
            )
    new = Chosen(settings, dialects)
    old = Chosen(before, dialects) if before is not None else None
    for dialect in dialects:
        if dialect.choices is not None:
            new.of(dialect.choices).check(old.of(dialect.choices) if old is not None else None)
    return new


def measure_of(found: Chosen, dialects: Iterable[Dialect]) -> Measure | None:
    """Return what rows of a topic weigh; None where no dialect minds. The first that does has its way."""
    for dialect in dialects:
        if dialect.choices is not None and (measure := found.of(dialect.choices).measure()) is not None:
            return measure
    return None
