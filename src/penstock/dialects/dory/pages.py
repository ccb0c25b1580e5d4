"""Dory's status pages: every path of its web interface, plain and as JSON.

What it does not know it answers as Dory did: a GET with the index, a POST with 404, the rest with 501.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

import penstock
from penstock.callers.rights import NODE
from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.dialect import Sample
from penstock.dialects.dory import reports
from penstock.dialects.dory.debug import MessageDebug
from penstock.dialects.dory.figures import Figures
from penstock.dialects.dory.forwarder import Forwarder, MetadataTimes, Queue, Watch
from penstock.discards import Report, raw, shown
from penstock.errors import Refusal
from penstock.http import App, Connection, Request, Response, Route
from penstock.http.response import CHALLENGE
from penstock.markup import Markup, tag

if TYPE_CHECKING:
    from penstock.callers import Action
    from penstock.dialects.dory.config import DoryConfig
    from penstock.node.node import Node

PLAIN = (b"content-type", b"text/plain; charset=utf-8")
JSON = (b"content-type", b"application/json")
HTML = (b"content-type", b"text/html; charset=utf-8")

#: Nothing is read of a body; one of this size is passed over.
IDLE_BYTES_MAX = 64 << 10

#: What the index shows, by path.
SHOWN = {
    "server_info": "Get server info",
    "counters": "Get counter values",
    "discards": "Get discard info",
    "queues": "Get queued message info",
    "metadata_fetch_time": "Get metadata fetch time",
}
DEBUG = "/msg_debug/"

_log = logging.getLogger("penstock.dory")


class Pages(App):
    """The application of the listener."""

    def __init__(self, node: Node, config: DoryConfig, inputs: Mapping[str, int]) -> None:
        """Take the counters of the inputs."""
        self._node = node
        self._inputs = inputs
        self._figures = Figures()
        #: How often each was asked for, and what else is counted here, by Dory's names.
        self.asked = dict.fromkeys((*ASKED.values(), *COUNTED), 0)
        self._interval_ns = node.discards.interval_ns
        #: When it is too late to ask for discards.
        self._due_ns = node.clock.monotonic() + self._interval_ns
        self._timer: Timer = node.clock.call_at(self._due_ns, self._look)
        self.debug = MessageDebug(
            node.clock, config.msg_debug_path, config.msg_debug_time_ns, config.msg_debug_bytes, self._watch
        )
        plain: dict[str, Callable[[], str]] = {
            "server_info": self._head,
            "counters": self._counters,
            "discards": self._discards,
            "queues": self._queues,
            "metadata_fetch_time": self._fetch_time,
        }
        documents: dict[str, Callable[[], dict[str, Any]]] = {
            "server_info": self._about,
            "counters": self._counters_json,
            "discards": self._discards_json,
            "queues": self._queues_json,
            "metadata_fetch_time": self._fetch_time_json,
        }
        self._index = _reading(lambda _: Response(str(INDEX).encode(), (HTML,)))
        self._reading: dict[str, Route] = {}
        for name, show in plain.items():
            self._reading[f"/{name}/plain"] = _reading(self._shown(name, show, _text))
        for name, document in documents.items():
            self._reading[f"/{name}/json"] = _reading(self._shown(name, document, _json))
        self._reading[f"{DEBUG}get_topics"] = _reading(lambda _: _text(self._topics()))
        self._changing = {
            f"{DEBUG}add_all_topics": Route(self._changes(self._add_all), IDLE_BYTES_MAX),
            f"{DEBUG}del_all_topics": Route(self._changes(self._del_all), IDLE_BYTES_MAX),
            f"{DEBUG}truncate_files": Route(self._changes(self._truncate), IDLE_BYTES_MAX),
        }
        self._topic_changes = {
            f"{DEBUG}add_topic/": Route(self._changes(self._add), IDLE_BYTES_MAX),
            f"{DEBUG}del_topic/": Route(self._changes(self._del), IDLE_BYTES_MAX),
        }
        self._update = Route(self._metadata_update, IDLE_BYTES_MAX)
        #: What a caller must be allowed to do with the node; what is not here only shows that it is there.
        self._rights: dict[Route, Action] = dict.fromkeys(self._reading.values(), "see")
        self._rights |= {self._reading[f"/discards/{form}"]: "read" for form in ("plain", "json")}
        changing = (*self._changing.values(), *self._topic_changes.values(), self._update)
        self._rights |= dict.fromkeys(changing, "admin")

    def close(self) -> None:
        """End what goes on by itself."""
        self._timer.cancel()
        self.debug.stop()

    # --- the kit --------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        self.asked["MongooseHttpRequest"] += 1
        path = request.path
        if request.method == "GET":
            request.route = self._reading.get(path) or self._changing.get(path)
            if request.route is None:
                found = next((prefix for prefix in self._topic_changes if path.startswith(prefix)), None)
                if found is not None:
                    request.names = {"topic": unquote(path.removeprefix(found), errors="surrogateescape")}
                request.route = self._topic_changes[found] if found is not None else self._index
        elif request.method == "POST" and path in ("/metadata_update", "/sys/metadata_update"):
            request.route = self._update
        else:
            raise _Unknown(404 if request.method == "POST" else 501, request.method, path)

    def admit(self, request: Request) -> None:
        """Let only those in who may be here, and change only for those who may."""
        request.caller.enter()
        assert request.route is not None
        right = self._rights.get(request.route)
        if right is not None:
            request.caller.check(right, NODE)

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and say it."""
        if isinstance(error, _Unknown):
            return Response(f"{error}\n".encode(), (PLAIN,), error.status)
        if isinstance(error, Refusal):
            self._node.count_fault("dory", error.code, f"{request}: {error}", connection.peer)
            more = (CHALLENGE,) if error.code == "unauthorized" else ()
            return Response(f"{error}\n".encode(), (PLAIN, *more), error.reason.http)
        self.asked["MongooseStdException"] += 1
        self._node.report_bug("dory http", error)
        return Response(b"the node failed inside; its log says more\n", (PLAIN,), 500)

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault("dory", "bad_request", text, connection.peer)

    def _shown(
        self, name: str, show: Callable[[], Any], form: Callable[[Any], Response]
    ) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            if name in ASKED:
                self.asked[ASKED[name]] += 1
            return form(show())

        return handle

    def _changes(self, change: Callable[[str], str]) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            if not self.debug.is_allowed:
                raise Refusal("forbidden", "message debug files are off; set dory.msg_debug_path and start again")
            try:
                return _text(change(request.names.get("topic", "")) + "\n")
            except OSError as error:
                raise Refusal("unavailable", f"message debug files cannot be used: {error}") from error

        return handle

    # --- who is it ------------------------------------------------------------------------------------------------

    def _now_s(self) -> int:
        return self._node.clock.now() // SECOND

    def _since_s(self) -> int:
        return self._node.started_ns // SECOND

    def _about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": penstock.__version__,
            "since": self._since_s(),
            "now": self._now_s(),
        }

    def _head(self) -> str:
        return (
            f"pid: {os.getpid()}\nversion: {penstock.__version__}\nsince: {reports.dated(self._since_s())}\n"
            f"now: {reports.dated(self._now_s())}\n"
        )

    # --- counters -------------------------------------------------------------------------------------------------

    def _counters(self) -> str:
        head = (
            f"now={reports.dated(self._now_s())}\nsince={reports.dated(self._since_s())}\npid={os.getpid()}\n"
            f"version={penstock.__version__}\n\n"
        )
        return head + "".join(f"[{each.location}].{each.name}={each.value}\n" for each in self._figured())

    def _counters_json(self) -> dict[str, Any]:
        return self._about() | {"counters": [each._asdict() for each in self._figured()]}

    def _figured(self) -> Iterable[Any]:
        self._look()
        relays = self._forwarders()
        held = sum(relay.waiting() + sum(sum(queue[1:]) for queue in relay.queues()) for relay in relays)
        return self._figures.read(self._inputs, self._node.discards, self._relayed(), held, self._node.bugs, self.asked)

    def _relayed(self) -> Iterable[Sample]:
        for served in self._node.served.values():
            if isinstance(served.running, Forwarder):
                yield from served.running.samples()

    # --- discards -------------------------------------------------------------------------------------------------

    def _discards(self) -> str:
        unfinished, finished = self._queried()
        text = (
            f"{self._head()}report interval in seconds: {self._interval_ns // SECOND}\n\n"
            f"current (unfinished) reporting period:\n{reports.as_text(unfinished)}"
        )
        if finished is not None:
            text += f"\nlatest finished reporting period:\n{reports.as_text(finished)}"
        return text

    def _discards_json(self) -> dict[str, Any]:
        unfinished, finished = self._queried()
        found = self._about() | {"interval": self._interval_ns // SECOND}
        found["unfinished_report"] = reports.as_json(unfinished)
        if finished is not None:
            found["finished_report"] = reports.as_json(finished)
        return found

    def _queried(self) -> tuple[Report, Report | None]:
        self._due_ns = self._node.clock.monotonic() + self._interval_ns
        return self._node.discards.reports()

    def _look(self) -> None:
        """Say it if nobody has asked for discards for longer than an interval: what they told is lost by then."""
        now_ns = self._node.clock.monotonic()
        if now_ns >= self._due_ns:
            self.asked["NoDiscardQuery"] += 1
            seconds = self._interval_ns // SECOND
            _log.warning("nobody has asked for /discards for %d s; ask oftener, or reports are lost", seconds)
            self._due_ns = now_ns + self._interval_ns
        self._timer.cancel()
        self._timer = self._node.clock.call_at(self._due_ns, self._look)

    # --- the relay ------------------------------------------------------------------------------------------------

    def _forwarders(self) -> list[Forwarder]:
        return [each.running for each in self._node.served.values() if isinstance(each.running, Forwarder)]

    def _held(self) -> tuple[list[Queue], int]:
        relays = self._forwarders()
        found = [Queue(*queue) for relay in relays for queue in relay.queues() if any(queue[1:])]
        return sorted(found), sum(relay.waiting() for relay in relays)

    def _queues(self) -> str:
        found, new = self._held()
        lines = [
            f"batch: {each.batch:10}  send_wait: {each.send_wait:10}  ack_wait: {each.ack_wait:10}  "
            f"topic: [{reports.plain(each.topic.encode('utf-8', 'surrogateescape'))}]\n"
            for each in found
        ]
        sums = {name: sum(getattr(each, name) for each in found) for name in ("batch", "send_wait", "ack_wait")}
        totals = "".join(f"{count:10} total {name}\n" for name, count in ({"new": new} | sums).items())
        every = new + sum(sums.values())
        head = f"{self._head()}\n{''.join(lines)}" + ("\n" if lines else "")
        return f"{head}{totals}{every:10} total (all states: new + batch + send_wait + ack_wait)\n"

    def _queues_json(self) -> dict[str, Any]:
        found, new = self._held()
        sending = [each._asdict() | {"topic": shown(each.topic)} for each in found]
        return self._about() | {"sending": sending, "new": new}

    def _fetched(self) -> MetadataTimes:
        return MetadataTimes(*max((relay.metadata_times() for relay in self._forwarders()), default=(0, 0)))

    def _fetch_time(self) -> str:
        times, now_ms = self._fetched(), self._node.clock.now() // MILLISECOND
        label = "(milliseconds since epoch)"
        return (
            f"pid: {os.getpid()}\nversion: {penstock.__version__}\nsince: {reports.dated(self._since_s())}\n"
            f"now {label}: {_dated_ms(now_ms)}\n"
            f"metadata last updated at {label}: {_dated_ms(times.updated_ms)}\n"
            f"metadata last modified at {label}: {_dated_ms(times.modified_ms)}\n"
        )

    def _fetch_time_json(self) -> dict[str, Any]:
        times = self._fetched()
        return self._about() | {
            "now": self._node.clock.now() // MILLISECOND,
            "last_updated": times.updated_ms,
            "last_modified": times.modified_ms,
        }

    def _metadata_update(self, request: Request) -> Response:
        relays = self._forwarders()
        if not relays:
            raise Refusal("unavailable", "no relay to Kafka runs here; name its topics in kafka_relay.topics")
        for relay in relays:
            relay.update_metadata()
        return _text(f"Metadata update initiated at {reports.dated(self._now_s())}\n")

    # --- message debug files --------------------------------------------------------------------------------------

    def _watch(self, watch: Watch | None) -> None:
        for relay in self._forwarders():
            relay.watch = watch

    def _topics(self) -> str:
        if self.debug.all_topics:
            return "All topics are logged\n"
        if not self.debug.topics:
            return "No topics are logged\n"
        return "".join(f"{reports.plain(raw(topic))}\n" for topic in sorted(self.debug.topics))

    def _add(self, topic: str) -> str:
        done = bool(topic) and self.debug.add(topic)
        return f"Logging of topic [{_named(topic)}] {'is on' if done else 'was not changed: it is logged already'}"

    def _del(self, topic: str) -> str:
        done = self.debug.remove(topic)
        return f"Logging of topic [{_named(topic)}] {'is off' if done else 'was not changed: it is not logged by name'}"

    def _add_all(self, _: str) -> str:
        return "Logging of all topics is on" if self.debug.add_all() else "All topics are logged already: no change"

    def _del_all(self, _: str) -> str:
        return "Logging of all topics is off" if self.debug.stop() else "No topics are logged: no change"

    def _truncate(self, _: str) -> str:
        self.debug.truncate()
        return "Logging is off, and the files are empty"


#: Requests that Dory counts, by page.
ASKED = {
    "counters": "MongooseGetCountersRequest",
    "discards": "MongooseGetDiscardsRequest",
    "queues": "MongooseGetMsgStatsRequest",
    "metadata_fetch_time": "MongooseGetMetadataFetchTimeRequest",
}
#: What else is counted here.
COUNTED = ("MongooseHttpRequest", "MongooseStdException", "NoDiscardQuery")


class _Unknown(Exception):
    """Something that is answered as Dory did."""

    def __init__(self, status: int, method: str, path: str) -> None:
        super().__init__(f"there is no {method} {path[:200]}")
        self.status = status


def _reading(handle: Callable[[Request], Response]) -> Route:
    return Route(handle, IDLE_BYTES_MAX, only_reads=True)


def _text(text: str) -> Response:
    return Response(text.encode("utf-8", "replace"), (PLAIN,))


def _json(content: dict[str, Any]) -> Response:
    return Response(msgspec.json.format(msgspec.json.encode(content), indent=4) + b"\n", (JSON,))


def _named(topic: str) -> str:
    return reports.plain(raw(topic))


def _dated_ms(milliseconds: int) -> str:
    return f"{milliseconds} {time.asctime(time.gmtime(milliseconds // 1000))}"


def _index() -> Markup:
    rows = [
        tag(
            "li",
            f"{text}: ",
            tag("a", "plain", href=f"/{name}/plain"),
            " ",
            tag("a", "JSON", href=f"/{name}/json"),
        )
        for name, text in SHOWN.items()
    ]
    debug = [
        tag("li", tag("a", name.replace("_", " "), href=f"{DEBUG}{name}"))
        for name in ("get_topics", "add_all_topics", "del_all_topics", "truncate_files")
    ]
    update = tag("form", tag("button", "Update metadata", type="submit"), action="/metadata_update", method="post")
    head = tag("head", tag("meta", charset="utf-8"), tag("title", "Dory"))
    body = tag("body", tag("h1", "Dory"), tag("ul", rows), tag("h2", "Message debugging"), tag("ul", debug), update)
    return Markup(f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n")


INDEX = _index()
