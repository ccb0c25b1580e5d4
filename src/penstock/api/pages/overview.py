"""The page at /: how the node is, its topics, subscriptions, consumers and pipelines, for people.

Whoever asks sees the topics it may see, and of the node as a whole what it may see of that. Work is bounded: so many
topics a page.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint, Reply
from penstock.api.health import problems_of
from penstock.api.pages.frame import site
from penstock.callers.rights import NODE
from penstock.clock import SECOND
from penstock.delivery.subscription import Subscription
from penstock.markup import Child, Markup, tag
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.resident import resident_bytes
from penstock.rest.page import page, table

#: As many as somebody reads; there is a filter, and a next page.
TOPICS_SHOWN = 100


class OverviewQuery(msgspec.Struct):
    """Which topics: those whose names begin so, after this one."""

    prefix: str = ""
    after: str = ""


class _Shown(NamedTuple):
    """What is on one page."""

    topics: list[Topic]
    #: How many there are to see, on all pages.
    total: int
    #: The name after which the next page begins.
    following: str


async def show_overview(call: Call[OverviewQuery, None]) -> Reply:
    """Show the node to people."""
    node, query = call.node, call.query
    sees_node = call.caller.may("see", NODE)
    shown = _topics(call)
    title = f"{len(shown.topics)} of {shown.total}" if shown.total > len(shown.topics) else str(shown.total)
    children: list[Child] = [
        _health(await problems_of(node), told=sees_node),
        _tiles(node, shown, sees_node=sees_node),
        tag("h2", f"Topics ({title})"),
        _topic_table(shown.topics, query.prefix),
        _next(query, shown),
        tag("h2", "Subscriptions"),
        _subscription_table(shown.topics),
    ]
    if sees_node:
        children += [tag("h2", "Pipelines"), _pipelines(node), tag("h2", "Listeners"), _listeners(node)]
    children.append(_legend())
    return page(site(call.context.version), "Penstock", children, tools=_filter(query), alive=True)


def _topics(call: Call[OverviewQuery, None]) -> _Shown:
    may, query = call.caller.may, call.query
    names = sorted(name for name in call.node.topics if name.startswith(query.prefix) and may("see", name))
    rest = [name for name in names if name > query.after]
    here = rest[:TOPICS_SHOWN]
    return _Shown([call.node.topics[name] for name in here], len(names), here[-1] if len(here) < len(rest) else "")


def _filter(query: OverviewQuery) -> Markup:
    field = tag(
        "input", type="search", name="prefix", value=query.prefix, placeholder="Topics that begin with …", size=26
    )
    clear = tag("a", "all topics", href="/") if query.prefix or query.after else None
    return tag("form", field, tag("button", "Show", type="submit"), clear, method="get", action="/")


def _health(problems: list[str], *, told: bool) -> Markup:
    if not problems:
        return tag("p", tag("span", "● Ready", class_="good"), " – the node takes messages and hands them out.")
    items = problems if told else ["Show who you are to see what is wrong."]
    return tag(
        "div",
        tag("span", "● Not ready", class_="bad"),
        tag("ul", [tag("li", each) for each in items]),
        class_="problems",
    )


def _tiles(node: Node, shown: _Shown, *, sees_node: bool) -> Markup:
    subscriptions = [each for topic in shown.topics for each in topic.subscriptions.values()]
    tiles: list[tuple[str, str]] = [
        (_count(sum(topic.published for topic in shown.topics)), "taken in"),
        (_count(sum(map(_lag, subscriptions))), "not finished yet"),
        (_count(sum(each.in_flight() for each in subscriptions)), "out on lease"),
        (_count(sum(len(each.seats) for each in subscriptions)), "consumers"),
        (_size(sum(topic.stored_bytes() for topic in shown.topics)), "stored"),
    ]
    if sees_node:
        connected = sum(1 for served in node.served.values() for _ in served.running.peers())
        uptime_ns = node.clock.now() - node.started_ns
        tiles += [
            (_count(connected), "connections"),
            (_size(resident_bytes()), "memory"),
            (_span(uptime_ns // SECOND), "since its start"),
        ]
    return tag(
        "div", [tag("div", tag("b", value), tag("span", text), class_="tile") for value, text in tiles], class_="tiles"
    )


def _topic_table(topics: list[Topic], prefix: str) -> Markup:
    if not topics:
        text = (
            f"No topic begins with {prefix}."
            if prefix
            else "No topics yet. The first publish makes one: penstock pub greetings hello"
        )
        return tag("div", text, class_="none")
    rows = []
    for topic in topics:
        rows_kept = sum(shard.rows_between(shard.kept_from, shard.end) for shard in topic.shards)
        rows.append(
            tag(
                "tr",
                _linked(topic.name, topic.name, paused=topic.settings.paused),
                tag("td", _count(topic.published), data_key=f"topic {topic.name}", data_count=topic.published),
                _number(rows_kept),
                tag("td", _size(topic.stored_bytes())),
                _number(topic.depth()),
                _number(len(topic.subscriptions)),
                tag("td", topic.settings.durability),
            )
        )
    return table("Topic|Taken in|Kept|Stored|Nobody's yet|Subscriptions|Durability", rows)


def _next(query: OverviewQuery, shown: _Shown) -> Markup | None:
    if not shown.following:
        return None
    where = "/?" + urlencode({"prefix": query.prefix, "after": shown.following})
    return tag("p", tag("a", "The next topics →", href=where))


def _subscription_table(topics: list[Topic]) -> Markup:
    found = [(topic, each) for topic in topics for each in topic.subscriptions.values()]
    if not found:
        return tag("div", "No subscriptions on these topics: what is published waits for the first one.", class_="none")
    found.sort(key=lambda pair: (-_lag(pair[1]), pair[0].name, pair[1].name))  # who is most behind comes first
    rows = [_subscription(topic, each) for topic, each in found]
    return table("Topic|Subscription|Lag|Ready|Out|Waiting|Consumers|Acked|Leases ended|Dead letters", rows, names=2)


def _subscription(topic: Topic, each: Subscription) -> Markup:
    counts = each.counts()
    consumers = len(each.seats) + len(each.looks)
    ready, leased, waiting = topic.backlog(each)
    key = f"subscription {topic.name} {each.name}"
    alone = ready and not consumers and not each.settings.paused
    return tag(
        "tr",
        _linked(topic.name, topic.name),
        _linked(each.name, topic.name, "subscriptions", each.name, paused=each.settings.paused),
        _number(_lag(each)),
        _number(ready),
        _number(leased),
        _number(waiting),
        tag("td", _count(consumers), class_="warn" if alone else None if consumers else "less"),
        tag("td", _count(counts["acked"]), data_key=key, data_count=counts["acked"]),
        _number(each.expired_leases, "warn"),
        _number(counts["dead_lettered"], "warn"),
    )


def _pipelines(node: Node) -> Markup:
    known = node.pipelines.known()
    if not known:
        return tag("div", "No pipeline reported to this node.", class_="none")
    rows = []
    for each in known:
        queries = each.report.queries
        error = each.report.error or next((query.error for query in queries if query.error), "")
        rows.append(
            tag(
                "tr",
                _name(each.report.name),
                tag("td", each.state, class_="good" if each.state == "running" else "bad"),
                _number(len(queries)),
                tag("td", f"{sum(query.rows_per_s for query in queries):,.0f}"),
                _number(sum(query.lag_rows for query in queries)),
                _number(sum(query.dead_rows for query in queries), "warn"),
                _number(each.restarts, "warn"),
                tag("td", error, class_="text"),
            )
        )
    return table("Pipeline|State|Queries|Rows/s|Rows behind|Dead rows|Restarts|<Error", rows)


def _listeners(node: Node) -> Markup:
    rows = []
    for name, served in node.served.items():
        peers = [peer.listener for peer in served.running.peers()]
        for bound in served.bound:
            key = bound.endpoint.key
            rows.append(
                tag("tr", _name(bound.endpoint.purpose), _name(bound.place), _number(peers.count(key)), tag("td", name))
            )
    return table("What|Where|Connected|Dialect", rows, names=2)


def _legend() -> Markup:
    text = (
        "Lag: ready, out and waiting together. Ready: could go out now if a consumer had room. Out: on lease at a "
        "consumer. Waiting: due later. Leases ended: nobody answered in time. Nobody's yet: published before "
        "there was a subscription."
    )
    note = tag("noscript", " Without scripts the page stands still: load it again for new numbers.")
    return tag("footer", text, note)


def _lag(each: Subscription) -> int:
    return each.depth() + each.in_flight() + each.waiting()


def _name(text: str) -> Markup:
    return tag("td", tag("bdi", text), class_="name", title=text)


def _linked(text: str, topic: str, *more: str, paused: bool = False) -> Markup:
    """Return a name that leads to what the API tells of it."""
    place = "/".join(quote(part, safe="") for part in (topic, *more))
    chip = tag("span", "paused", class_="warn chip") if paused else None
    link = tag("a", tag("bdi", text), href=f"{PREFIX}/topics/{place}")
    return tag("td", link, chip, class_="name", title=text)


def _number(value: int, kind: str | None = None) -> Markup:
    return tag("td", _count(value), class_=kind if value else "less")


def _count(value: int) -> str:
    return f"{value:,}"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _span(seconds: int) -> str:
    for size, unit, less, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // less} {part}"
    return f"{max(seconds, 0)} s"


ENDPOINTS = (
    Endpoint("GET", "/", show_overview, "The node on a page for people", query=OverviewQuery, media_type="text/html"),
)
