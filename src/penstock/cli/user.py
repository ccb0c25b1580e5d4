"""`penstock user`: who may do what on a node; its file of users is changed, and the node takes that up by itself.

Owns how secrets come in and go out: from standard input, or made here and printed once; never as an argument, which
everybody on the machine could read.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, get_args

import msgspec
import typer

from penstock.cli.command import Json
from penstock.cli.config import File
from penstock.cli.failure import REFUSED, USAGE, Failure
from penstock.cli.printer import Printer, moment
from penstock.units import times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.callers.book import Book, Token, User
    from penstock.callers.quota import UserQuota
    from penstock.callers.rights import Action, Rule

app = typer.Typer(help="Users of a node, their rights, quotas, secrets and tokens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user.")]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Data directory.", metavar="DIR", show_default="as the configuration here says"),
]
Publish = Annotated[list[str] | None, typer.Option(metavar="TOPICS", help="May publish there. May be repeated.")]
Consume = Annotated[list[str] | None, typer.Option(metavar="TOPICS", help="May receive and read there.")]
Manage = Annotated[list[str] | None, typer.Option(metavar="TOPICS", help="May make, change and delete these.")]
Admin = Annotated[list[str] | None, typer.Option(metavar="TOPICS", help="May do everything there; * is the node, too.")]
FromStdin = Annotated[
    bool, typer.Option("--stdin", help="Read the secret from standard input, instead of making one and printing it.")
]


class Shown(msgspec.Struct):
    """A user, without anything secret."""

    name: str
    rights: list[str]
    secret: bool
    tokens: dict[str, str]
    #: Access keys by their ids.
    keys: list[str]
    #: What is bounded, by the names of the options.
    quota: dict[str, int]


@app.command()
def add(
    name: Name,
    publish: Publish = None,
    consume: Consume = None,
    manage: Manage = None,
    admin: Admin = None,
    stdin: FromStdin = False,
    file: File = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Make a user with a secret and these rights; TOPICS is a pattern, like orders.* or *.

    A client certificate with this name as its common name is this user, too.
    """
    from penstock.callers import secret as secrets
    from penstock.callers.book import User, check_name

    users = Users(file, data)
    check_name(name)
    if name in users.book.users:
        raise Failure(f"there is a user {name} already; `penstock user rights` changes what it may do", REFUSED)
    given = _from_stdin() if stdin else ""
    secret = given or secrets.made()
    rules = tuple(_rules(publish, consume, manage, admin))
    users.keep(users.book.having(User(name, rules, secrets.hashed(secret.encode()))))
    _say_secret(Printer(json=json), f"user {name} made: {_rights(rules)}", {"user": name}, "" if given else secret)


@app.command()
def rights(
    name: Name,
    publish: Publish = None,
    consume: Consume = None,
    manage: Manage = None,
    admin: Admin = None,
    file: File = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Give a user these rights, and no others any more."""
    users = Users(file, data)
    rules = tuple(_rules(publish, consume, manage, admin))
    users.keep(users.book.having(msgspec.structs.replace(users.book.user(name), rules=rules)))
    Printer(json=json).done({"user": name, "rights": list(map(str, rules))}, f"user {name}: {_rights(rules)}")


@app.command()
def secret(name: Name, stdin: FromStdin = False, file: File = None, data: Data = None, json: Json = False) -> None:
    """Give a user another secret; the old one counts no more."""
    from penstock.callers import secret as secrets

    users = Users(file, data)
    user = users.book.user(name)
    given = _from_stdin() if stdin else ""
    new = given or secrets.made()
    users.keep(users.book.having(msgspec.structs.replace(user, secret=secrets.hashed(new.encode()))))
    _say_secret(Printer(json=json), f"user {name} has another secret", {"user": name}, "" if given else new)


@app.command()
def quota(
    name: Annotated[str, typer.Argument(metavar="USER", help="The user, or anonymous: everybody who is none.")],
    messages_per_second: Annotated[int | None, typer.Option(min=0, help="Messages it publishes a second.")] = None,
    bytes_per_second: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes it publishes a second, like 10MiB.")
    ] = None,
    connections: Annotated[
        int | None, typer.Option(min=0, help="Connections it has at a time; a stream of Flight is one, too.")
    ] = None,
    topics: Annotated[int | None, typer.Option(min=0, help="Topics it made, that are there.")] = None,
    stored: Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes that those hold, like 5GiB.")] = None,
    file: File = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Bound what a user uses; 0 is no bound, and what is not named stays. Without options: show it.

    Whoever publishes too fast is slowed down, then refused; consumers are not affected.
    """
    from penstock.callers.quota import QUOTA_MAX
    from penstock.units.quantity import parse_size

    users = Users(file, data)
    given = {
        "messages_per_second": messages_per_second,
        "bytes_per_second": parse_size(bytes_per_second) if bytes_per_second is not None else None,
        "connections": connections,
        "topics": topics,
        "stored_bytes": parse_size(stored) if stored is not None else None,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    for option, value in chosen.items():
        if value > QUOTA_MAX:
            raise Failure(f"{option} of {value} is too much: at most {QUOTA_MAX}, and 0 is no bound", USAGE)
    book = users.book
    new = msgspec.structs.replace(_quota_of(book, name), **chosen)
    if chosen:
        users.keep(book.with_quota(name, new))
    Printer(json=json).done({"user": name, "quota": _bounds(new)}, f"user {name}: {_quota(new)}")


@app.command("list")
def list_(file: File = None, data: Data = None, json: Json = False) -> None:
    """List users with their rights, the names of their tokens, the ids of their access keys, and their quotas."""
    users = Users(file, data)
    shown = [_shown(user) for user in users.book]
    rows = [_row(each, user.quota) for each, user in zip(shown, users.book, strict=True)]
    anonymous = users.book.anonymous
    if _bounds(anonymous):
        shown.append(Shown("anonymous", [], False, {}, [], _bounds(anonymous)))
        rows.append(_row(shown[-1], anonymous))
    Printer(json=json).table(
        shown,
        ("user", "rights", "secret", "tokens", "keys", "quota"),
        rows,
        f"there is nobody in {users.path}; `penstock user add` helps",
    )


@app.command()
def show(name: Name, file: File = None, data: Data = None, json: Json = False) -> None:
    """Show one user."""
    user = Users(file, data).book.user(name)
    shown, out = _shown(user), Printer(json=json)
    if json:
        out.done(shown, "")
        return
    out.line(f"user    {shown.name}")
    out.line(f"rights  {_lines(shown.rights)}")
    out.line(f"secret  {'yes' if shown.secret else '-'}")
    out.line(f"tokens  {_lines(_tokens(shown))}")
    out.line(f"keys    {_lines(shown.keys)}")
    out.line(f"quota   {_quota(user.quota)}")


@app.command()
def remove(name: Name, file: File = None, data: Data = None, json: Json = False) -> None:
    """Remove a user with its tokens, and hang up on it."""
    users = Users(file, data)
    users.keep(users.book.lacking(name))
    Printer(json=json).done({"removed": name}, f"user {name} removed")


@app.command()
def token(
    name: Name,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="What people call the token, like `laptop`.")],
    expires: Annotated[str, typer.Option(help="How long it counts, like 30d or 12h; 0 for ever.")] = "90d",
    revoke: Annotated[bool, typer.Option("--revoke", help="Take it back instead.")] = False,
    file: File = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Make a token of a user's, and print it once; or take it back."""
    from penstock.callers import secret as secrets
    from penstock.callers.book import Token
    from penstock.units.quantity import parse_duration

    users, out = Users(file, data), Printer(json=json)
    user = users.book.user(name)
    others = tuple(each for each in user.tokens if each.name != label)
    is_there = len(others) < len(user.tokens)
    if revoke:
        if not is_there:
            raise Failure(f"user {name} has no token {label}; `penstock user list` shows them", REFUSED)
        users.keep(users.book.having(msgspec.structs.replace(user, tokens=others)))
        out.done({"user": name, "revoked": label}, f"token {label} of user {name} taken back")
        return
    if is_there:
        raise Failure(f"user {name} has a token {label} already; take it back with --revoke first", REFUSED)
    lasts_ns = parse_duration(expires)
    new, expires_ns = secrets.made(), time.time_ns() + lasts_ns if lasts_ns else 0
    made = Token(label, secrets.digest(new.encode()), expires_ns)
    users.keep(users.book.having(msgspec.structs.replace(user, tokens=(*others, made))))
    document = {"user": name, "token": label, "expires": _until(made)}
    _say_secret(out, f"token {label} of user {name} made, it counts until {_until(made)}", document, new)


@app.command()
def key(
    name: Name,
    revoke: Annotated[str, typer.Option("--revoke", metavar="KEY", help="Take this one back instead.")] = "",
    file: File = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Make an access key of a user's, which SQS clients sign with, and print its secret once; or take it back.

    The secret is kept in the file of users as it is: whoever checks a signature must be able to make it.
    """
    from penstock.callers import secret as secrets
    from penstock.callers.book import AccessKey

    users, out = Users(file, data), Printer(json=json)
    user = users.book.user(name)
    if revoke:
        others = tuple(each for each in user.keys if each.id != revoke)
        if len(others) == len(user.keys):
            raise Failure(f"user {name} has no access key {revoke}; `penstock user list` shows them", REFUSED)
        users.keep(users.book.having(msgspec.structs.replace(user, keys=others)))
        out.done({"user": name, "revoked": revoke}, f"access key {revoke} of user {name} taken back")
        return
    made = AccessKey(secrets.key_id(), secrets.made())
    users.keep(users.book.having(msgspec.structs.replace(user, keys=(*user.keys, made))))
    out.done({"user": name, "key": made.id, "secret": made.secret}, f"access key of user {name} made")
    if not out.json:
        out.line(f"AWS_ACCESS_KEY_ID={made.id}")
        out.line(f"AWS_SECRET_ACCESS_KEY={made.secret}")


@app.command()
def may(
    name: Name,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="publish, receive, read, change, admin, ...")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help='One topic, "" for the node as a whole.')],
    file: File = None,
    data: Data = None,
    json: Json = False,
) -> int:
    """Say whether a user may do something with a topic, and by which right; the exit code is 1 if not."""
    from penstock.callers.rights import GIVES, OWN, is_kept, rule_for

    action = {"consume": "receive", "manage": "change"}.get(action, action)
    known: Action | None = next((each for each in GIVES["admin"] if each == action), None)
    if known is None:
        raise Failure(f"{action} is no action; there are {', '.join(sorted(GIVES['admin']))}", USAGE)
    user = Users(file, data).book.user(name)
    rule = rule_for(user.rules, known, topic)
    if rule is not None:
        why = f"it has {rule}"
    elif is_kept(known, topic):
        why = f"topics that begin with {OWN} are the node's own"
    else:
        able = sorted(right for right, actions in GIVES.items() if known in actions)
        what = f"it has {_rights(user.rules)}; it needs {' or '.join(able)} on a pattern that matches"
        why = f"{what}, and names {OWN}" if topic.startswith(OWN) else what
    where = f"topic {topic}" if topic else "the node as a whole"
    text = f"{'yes' if rule else 'no'}: user {name} may {'' if rule else 'not '}{known} {where}, because {why}"
    document = {"user": name, "action": known, "topic": topic, "may": rule is not None, "why": why}
    Printer(json=json).done(document, text)
    return 0 if rule else REFUSED


class Users:
    """The users that a configuration names."""

    def __init__(self, file: str | None, data: str | None) -> None:
        from penstock.callers.book import Book, content_of
        from penstock.cli.table import load
        from penstock.config import users_file

        # A listener that waits for users must not keep them from being made.
        chosen: dict[str, object] = {"insecure": True}
        self.path = users_file(load(file, {**chosen, "data_dir": data} if data else chosen).config)
        self._content = content_of(self.path)
        self.book: Book = Book.of(self._content, self.path)

    def keep(self, book: Book) -> None:
        """Write the users down; a running node finds that out within a second."""
        from penstock.callers.book import content_of

        if content_of(self.path) != self._content:
            raise Failure(f"somebody else changed {self.path} meanwhile; try again", REFUSED)
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), mode=0o700, exist_ok=True)
        book.write(self.path)


def _rules(
    publish: list[str] | None, consume: list[str] | None, manage: list[str] | None, admin: list[str] | None
) -> Iterator[Rule]:
    from penstock.callers.rights import Right, Rule

    rights: tuple[Right, ...] = get_args(Right)
    for right, patterns in zip(rights, (publish, consume, manage, admin), strict=True):
        for pattern in patterns or ():
            if not pattern:
                raise Failure(f"--{right} names no topics; write a pattern, like orders.* or *", USAGE)
            yield Rule(right, pattern)


def _from_stdin() -> str:
    from penstock.callers.secret import SECRET_CHARACTERS_MIN

    given = sys.stdin.readline().rstrip("\r\n")
    if len(given) < SECRET_CHARACTERS_MIN:
        raise Failure(f"a secret has at least {SECRET_CHARACTERS_MIN} characters; leave --stdin out to get one", USAGE)
    return given


def _say_secret(out: Printer, text: str, document: dict[str, str], secret: str) -> None:
    """Say what was done, and a new secret, which nobody can ask for again."""
    out.done({**document, "secret": secret} if secret else document, text)
    if secret and not out.json:
        out.line(f"{secret}")
        print("It is shown this once; only a hash of it is kept.", file=sys.stderr)


def _rights(rules: tuple[Rule, ...]) -> str:
    return ", ".join(map(str, rules)) or "no rights"


def _lines(texts: list[str]) -> str:
    return ", ".join(texts) or "-"


def _shown(user: User) -> Shown:
    return Shown(
        user.name,
        list(map(str, user.rules)),
        bool(user.secret),
        {each.name: _until(each) for each in user.tokens},
        [key.id for key in user.keys],
        _bounds(user.quota),
    )


def _row(shown: Shown, quota: UserQuota) -> tuple[str, ...]:
    secret = "yes" if shown.secret else "-"
    return shown.name, _lines(shown.rights), secret, _lines(_tokens(shown)), _lines(shown.keys), _quota(quota)


def _quota_of(book: Book, name: str) -> UserQuota:
    from penstock.callers.book import ANONYMOUS_USER

    return book.anonymous if name == ANONYMOUS_USER else book.user(name).quota


def _bounds(quota: UserQuota) -> dict[str, int]:
    return {name: value for name, value in msgspec.structs.asdict(quota).items() if value}


def _quota(quota: UserQuota) -> str:
    return ", ".join(quota.lines()) or "no quota"


def _tokens(shown: Shown) -> list[str]:
    return [f"{name} (until {moment(until)})" for name, until in shown.tokens.items()]


def _until(token: Token) -> str:
    return times.shown(token.expires_ns) if token.expires_ns else "it is taken back"
