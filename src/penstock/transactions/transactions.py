"""The transactions of Spark queries: what tasks staged becomes messages, once per (query, topic, batch), whatever dies
in between (ruling 16).

The registry knows which transaction of a query to a topic is under way, or was the last, and the marks of those before.
Invariant: a transaction that was written down is finished, by this process or by the next one, before anything else may
follow it in its query; one that is taken for written has the rows of the one that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.intake.mark import BITS
from penstock.intake.staging import TOPIC, name_of, topic_of
from penstock.registry.answer import Answer, Told
from penstock.transactions.decisions import KEYS as DECISIONS
from penstock.transactions.decisions import Decision, Decisions, Part
from penstock.transactions.record import KEYS, Past, TransactionRecord, key_of
from penstock.transactions.records import Records
from penstock.transactions.transaction import RETRY_NS, Committed, Transaction, marked
from penstock.units.times import shown

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

    Obtain = Callable[[str], Answer[Topic]]

#: Committed queries are remembered this long after their last commit.
FORGET_NS = 30 * 24 * 3600 * SECOND

#: What to do about a batch that is another than the one of its number.
_WAY_OUT = (
    "Two queries share this name: a checkpoint was copied, or an older one was put back. Give this one a "
    "checkpointLocation (a batch write: a txnAppId, or a txnVersion above the last) of its own"
)
#: Only the last batch is ever repeated by the query that wrote it.
_IF_THE_SAME = ". If it is the same query, and its rows come out otherwise each time, set option repeats to any"


class _Asked(NamedTuple):
    """A commit that was asked for."""

    query: str
    batch: int
    attempts: tuple[str, ...]
    names: list[str]
    any_rows: bool
    done: Committed
    #: How the topic is had, if it is not there yet.
    obtain: Obtain
    #: The attempts that were decided on with other topics, as far as who asks knows: this node may not have heard yet.
    decided: tuple[str, ...] = ()


class Seen(NamedTuple):
    """What staged attempts hold."""

    rows: int
    mark: int
    #: What their rows name.
    topics: frozenset[str]


class Transactions:
    """The transactions of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._records = Records(node)
        #: By the record's key.
        self._running: dict[str, Transaction] = {}
        #: Commits that are being written down.
        self._beginning: dict[str, Answer[TransactionRecord]] = {}
        #: Batches of several topics.
        self.decisions = Decisions(node, self._carry_out)
        #: Batches committed since the node started.
        self.committed = 0

    @property
    def failed(self) -> int:
        """Batches that cannot be finished, because what was staged for them is damaged."""
        return sum(bool(run.failed) for run in self._running.values())

    def resume(self) -> None:
        """Finish what was under way when the node died; in a cluster, what this node has the topic of."""
        alone = self._node.share is None
        for record in self._records.all():
            if not record.done and (alone or (record.topic is not None and record.topic in self._node.topics)):
                self._start(record)
        if not alone:
            self.decisions.start()
            for name in list(self._node.topics):
                self.decisions.here(name)

    def changed(self, change: str, topic: Topic, subscription: object) -> None:
        """Go on with what was decided for a topic that came from another node, and stop where one went there."""
        if subscription is not None or topic.settings.log == "local":
            return
        if change == "created":
            self._node.staging.open(topic.name, topic.disk, topic.path, self._node.clock.now())
            for record in self._records.of_topic(topic.name):
                if not record.done and record.key not in self._running:
                    self._start(record)
            self.decisions.here(topic.name)
        elif change in ("left", "deleted"):
            self._node.staging.close(topic.name)
            for key, run in list(self._running.items()):
                if run.topic == topic.name and change == "left":
                    del self._running[key]
                    run.abandon(Refusal("unavailable", f"topic {topic.name} went to another node; ask again"))

    def commit(
        self,
        query: str,
        batch: int,
        attempts: list[str],
        done: Committed,
        *,
        any_rows: bool = False,
        obtain: Obtain | None = None,
        decided: Sequence[str] = (),
    ) -> None:
        """Make what these attempts staged visible; `done` hears once, when it is as durable as can be.

        A batch that is there already is not added again, and must be the same one, or the call is refused. With
        `any_rows` the last one may have other rows: a query that draws lots repeats it so after a crash. A topic that
        is not there is had by `obtain`, so that it counts as its user's.
        """
        try:
            names = [name_of(query, batch, attempt) for attempt in attempts]
            if len(set(names)) < len(names):
                raise Refusal("bad_request", "an attempt is named twice")
            if not names:  # no rows, so there is nothing that could be there twice, or be missing
                done((0, False), None)
                return
            had = obtain or self._node.obtain
            asked = _Asked(query, batch, tuple(attempts), names, any_rows, done, had, tuple(decided))
            record = self._before(asked)
            if record is None or (record.done and batch > record.batch):
                self._begin_decided(asked, record)
                return
            if record.done:
                self._repeated(asked, record)
                return
            elif record.batch != batch:
                run = self._running.get(record.key)
                text = f"batch {record.batch} of query {query} is not finished yet; batch {batch} must wait for it"
                raise Refusal("conflict", text if run is None or not run.failed else run.failed)
        except Refusal as refusal:
            done(None, refusal)
            return
        self._join(asked, record)

    def prepare(self, query: str, batch: int, attempts: list[str], done: Committed) -> None:
        """Tell whether these attempts could be committed: they are staged and whole, or were committed before."""
        try:
            names = [name_of(query, batch, attempt) for attempt in attempts]
            asked = _Asked(query, batch, tuple(attempts), names, False, done, self._node.obtain)
            record = self._before(asked)
        except Refusal as refusal:
            done(None, refusal)
            return
        if record is not None and record.batch == batch:
            done((0, True), None)
        else:
            _checked(self._node, names).then(lambda _, error: done((0, False) if error is None else None, error))

    def _carry_out(self, decision: Decision, part: Part) -> None:
        """Begin what was decided for a topic, if that is here and it is not begun."""
        topic = self._node.topics.get(part.topic)
        if topic is None or topic.record.incarnation != part.incarnation or self._node.stopping:
            return
        names = [name_of(decision.query, decision.batch, attempt) for attempt in part.attempts]
        clock = self._node.clock

        def again() -> None:
            clock.call_at(clock.monotonic() + RETRY_NS, lambda: self._carry_out(decision, part))

        try:
            last = self._records.last(decision.query, part.topic)
        except Refusal:  # it cannot be read, and what follows it waits until it can
            again()
            return
        if last is not None and last.batch >= decision.batch:
            return
        if (last is not None and not last.done) or not all(map(self._node.staging.has, names)):
            return  # the one before it first; what was swept, nobody waits for

        def done(_: tuple[int, bool] | None, error: BaseException | None) -> None:
            if error is not None:  # also where another node has it by now, which is seen then
                again()

        asked = _Asked(decision.query, decision.batch, part.attempts, names, False, done, self._node.obtain)
        self._begin(asked, last)

    def _begin_decided(self, asked: _Asked, last: TransactionRecord | None) -> None:
        """Begin a commit, unless it was decided that other attempts make up this batch: then those are first."""
        topic = self._node.staging.topic(asked.names)
        wanted = asked.decided or self._decided(asked, topic)
        names = [name_of(asked.query, asked.batch, attempt) for attempt in wanted]
        if not wanted or wanted == asked.attempts or not all(map(self._node.staging.has, names)):
            self._begin(asked, last)
            return
        key, errors = key_of(asked.query, topic), list[BaseException]()

        def begun(error: BaseException | None) -> None:
            if error is None:
                self._again(asked)  # these rows are held against what was decided
            else:
                asked.done(None, error)

        if key not in self._beginning:
            done: Committed = lambda _, error: errors.append(error) if error is not None else None  # noqa: E731
            self._begin(asked._replace(attempts=wanted, names=names, done=done), last)
        if key in self._beginning:
            self._beginning[key].then(lambda _, error: begun(error))
        else:
            begun(errors[0] if errors else None)

    def _decided(self, asked: _Asked, topic: str | None) -> tuple[str, ...]:
        decision = self.decisions.of(asked.query) if topic is not None and self._node.share is not None else None
        part = decision.part(topic) if decision is not None and decision.batch == asked.batch else None
        return part.attempts if part is not None else ()

    def _join(self, asked: _Asked, record: TransactionRecord) -> None:
        """Wait for a commit with others who do."""
        run = self._running.get(record.key) or self._start(record)
        if run.failed:
            self._begin_anew(asked, record, run)
        elif asked.attempts == record.attempts:
            run.waiting.append(asked.done)
        else:  # What others staged was promised. Once it is there, these rows are held against it.
            run.spared.update(asked.names)
            run.waiting.append(partial(self._after, asked))

    def _begin_anew(self, asked: _Asked, record: TransactionRecord, failed: Transaction) -> None:
        """Write the whole of a batch of which some is there and the rest was damaged, if that may come twice."""
        if not asked.any_rows or asked.attempts == record.attempts:
            asked.done(None, Refusal("conflict", failed.failed))
            return
        anew = failed.anew(asked.attempts)

        def put(_: None) -> Answer[TransactionRecord]:
            return self._records.put(anew).then_make(lambda _: anew)

        def begun(_: TransactionRecord | None, error: Exception | None) -> None:
            if error is None:
                del self._running[record.key]
                self._node.staging.remove([name_of(record.query, record.batch, old) for old in record.attempts])

        self._write_down(asked, record.key, lambda: _checked(self._node, asked.names).then_ask(put), begun)

    def _write_down(
        self,
        asked: _Asked,
        key: str,
        write: Callable[[], Answer[TransactionRecord]],
        begun: Told[TransactionRecord] = lambda _, __: None,
    ) -> None:
        """Write a commit down, then start it; one at a time of a query and topic."""
        if key in self._beginning:
            self._beginning[key].then(lambda _, __: self._again(asked))
            return

        def told(record: TransactionRecord | None, error: Exception | None) -> None:
            self._beginning.pop(key, None)
            begun(record, error)
            if record is None:
                asked.done(None, error)
            else:
                self._join(asked, record)

        self._beginning[key] = answer = write()
        answer.then(told)

    def _after(self, asked: _Asked, answer: tuple[int, bool] | None, error: BaseException | None) -> None:
        if error is not None:
            asked.done(None, error)
        else:
            self._again(asked)

    def _again(self, asked: _Asked) -> None:
        self.commit(
            asked.query,
            asked.batch,
            list(asked.attempts),
            asked.done,
            any_rows=asked.any_rows,
            obtain=asked.obtain,
            decided=asked.decided,
        )

    def abort(self, query: str, batch: int, attempts: list[str]) -> None:
        """Drop attempts, unless they are being committed."""
        decision = self.decisions.of(query)
        decided = decision.parts if decision is not None and decision.batch == batch else ()
        kept = {attempt for part in decided for attempt in part.attempts}
        if not any(not record.done and record.batch == batch for record in self._records.of_query(query)):
            self._node.staging.remove([name_of(query, batch, each) for each in attempts if each not in kept])

    def sweep(self) -> None:
        """Drop what nobody committed in time, and queries nobody heard of for long."""
        now_ns = self._node.steady.now()
        needed: set[str] = set()
        for record in self._records.all():
            if not record.done:
                needed.update(name_of(record.query, record.batch, attempt) for attempt in record.attempts)
            elif now_ns - record.changed_ns > FORGET_NS:
                self._node.catalog.remove([record.key])
        for decision in self.decisions.all():
            for part in decision.parts:
                needed.update(name_of(decision.query, decision.batch, attempt) for attempt in part.attempts)
        self.decisions.forget(now_ns - FORGET_NS)
        if any(key.startswith((KEYS, DECISIONS)) for key in self._node.catalog.unreadable()):
            return  # one of them may need any attempt
        swept = self._node.staging.sweep(now_ns, needed)
        if swept:
            self._node.ledger.add("staged", "", swept, now_ns, "staged and not committed within a day")

    # --- which one is it ------------------------------------------------------------------------------------------

    def _before(self, asked: _Asked) -> TransactionRecord | None:
        """Return the last commit of this query to this topic."""
        missing = [name for name in asked.names if not self._node.staging.has(name)]
        if not missing:
            return self._records.last(asked.query, self._node.staging.topic(asked.names))
        for record in self._records.of_query(asked.query):
            if record.batch == asked.batch and record.attempts == asked.attempts:
                return record  # staged no more because it is committed, and the driver did not hear it
        attempt = asked.attempts[asked.names.index(missing[0])]
        text = (
            f"attempt {attempt} of batch {asked.batch} of query {asked.query} is not staged, or was swept after a day"
        )
        raise Refusal("not_found", text)

    def _begin(self, asked: _Asked, last: TransactionRecord | None) -> None:
        """Begin a commit that nobody began before."""
        name = self._node.staging.topic(asked.names)

        def write(topic: Topic | None) -> Answer[TransactionRecord]:
            record = TransactionRecord(
                query=asked.query,
                batch=asked.batch,
                attempts=asked.attempts,
                topic=name,
                incarnation=0 if topic is None else topic.record.incarnation,
                mark=0,
                past=last.past if last is not None else (),
            )
            old = last is not None and last.key != record.key  # one which this one follows
            return self._records.put(record, [last.key] if old and last is not None else []).then_make(lambda _: record)

        def begin() -> Answer[TransactionRecord]:
            return _checked(self._node, asked.names).then_ask(lambda _: self._topic(asked, name)).then_ask(write)

        self._write_down(asked, key_of(asked.query, name), begin)

    def _topic(self, asked: _Asked, name: str | None) -> Answer[Topic | None]:
        if name is None:
            return Answer.of(None)
        topic: Answer[Topic | None] = asked.obtain(name).then_make(lambda found: found)
        return topic

    def _repeated(self, asked: _Asked, record: TransactionRecord) -> None:
        """Answer for a batch that was committed before, if it is that one."""
        if asked.batch == record.batch and asked.attempts == record.attempts:
            self._known(asked, record, record.rows)
            return
        past = record.found(asked.batch)
        if past is None:
            raise Refusal(
                "conflict",
                f"batch {asked.batch} of query {asked.query} is not among the last ones that were written to "
                f"{_where(record)}, and the last one is {record.batch}: nothing of it is written, because it cannot be "
                f"told whether it is there. {_WAY_OUT}",
            )
        if asked.any_rows and asked.batch == record.batch:
            self._known(asked, record, past.rows)
            return
        read = partial(_seen, self._node.staging.batches, asked.names)
        self._node.disk.submit("read", read, partial(self._compared, asked, record, past))

    def _compared(
        self, asked: _Asked, record: TransactionRecord, past: Past, seen: Seen | None, error: BaseException | None
    ) -> None:
        if seen is None:
            asked.done(None, error)
            return
        try:
            self._tell_apart(asked, record, past, seen)
            self._known(asked, record, past.rows)
        except Refusal as refusal:
            asked.done(None, refusal)

    def _tell_apart(self, asked: _Asked, record: TransactionRecord, past: Past, seen: Seen) -> None:
        many = "row" if seen.rows == 1 else "rows"
        anew = [name for name in sorted(seen.topics) if not self._was_there(name, past.done_ns)]
        if seen.rows != past.rows:
            found = f"{seen.rows} {many}"
        elif past.mark is not None and seen.mark != past.mark:
            found = f"{seen.rows} other {many}"
        elif anew:
            found = f"the same, but topic {anew[0]} was made anew since"
        else:
            return
        raise Refusal(
            "conflict",
            f"batch {asked.batch} of query {asked.query} was written to {_where(record)} on {shown(past.done_ns)} with "
            f"{past.rows} rows; what comes under this number now has {found}, and nothing of it is written. {_WAY_OUT}"
            f"{_IF_THE_SAME if asked.batch == record.batch else ''}",
        )

    def _was_there(self, name: str, time_ns: int) -> bool:
        topic = self._node.topics.get(name)
        return topic is not None and topic.record.created_ns <= time_ns

    def _known(self, asked: _Asked, record: TransactionRecord, rows: int) -> None:
        """Answer that a batch is there."""
        now = self._records.get(record.key)
        if now is not None and now.done and now.batch == asked.batch and now.attempts != asked.attempts:
            # Its attempts go; the driver may not hear this and ask again.
            put = self._records.put(msgspec.structs.replace(now, attempts=asked.attempts))
        else:
            put = Answer.of(None)

        def told(_: None, error: Exception | None) -> None:
            if error is not None:
                asked.done(None, error)
            else:
                self._node.staging.remove(asked.names)
                asked.done((rows, True), None)

        put.then(told)

    # --- what is under way ----------------------------------------------------------------------------------------

    def _start(self, record: TransactionRecord) -> Transaction:
        run = self._running[record.key] = Transaction(self._node, record, self._records.put, self._finished)
        run.begin()
        return run

    def _finished(self, record: TransactionRecord) -> None:
        spared = self._running.pop(record.key).spared
        self.committed += 1
        if record.topic is not None and self._node.share is not None:
            self.decisions.here(record.topic)
        staging = self._node.staging
        names = {name_of(record.query, record.batch, attempt) for attempt in record.attempts}
        # Attempts of tasks that lost, and of a driver that died: their batch is committed.
        lost = () if record.is_old else staging.of_query(record.query, record.topic, record.batch)
        staging.remove(sorted((names | set(lost)) - spared))


def _checked(node: Node, names: list[str]) -> Answer[None]:
    """Answer once it is known that attempts are what was staged: what is damaged must not be begun with."""
    answer: Answer[None] = Answer()

    def done(_: None, error: BaseException | None) -> None:
        if error is None:
            answer.give(None)
        else:
            answer.refuse(error if isinstance(error, Exception) else Refusal("unavailable", str(error)))

    node.disk.submit("read", partial(node.staging.check, names), done)
    return answer


def _where(record: TransactionRecord) -> str:
    if record.is_old:
        return "its topics"
    return "the topics its rows name" if record.topic is None else f"topic {record.topic}"


def _seen(batches: Callable[[str], Iterator[pa.RecordBatch]], names: list[str]) -> Seen:
    """Return what attempts hold; blocking."""
    rows = total = 0
    topics: set[str] = set()
    for name in names:
        for batch in batches(name):
            rows += len(batch)
            total += marked(batch)
            if topic_of(batch.schema) is None:
                topics.update(batch.column(TOPIC).unique().to_pylist())
    return Seen(rows, total & BITS, frozenset(topics))
