"""The SDK shows who it is, from a file or as it is told, and is refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import AsyncClient, Client, Refusal
from penstock.client.connection import Access
from penstock.config import CallersConfig, Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.errors import ConfigError
from penstock.pipeline.plan.document import Place
from tests.callers.parts import SECRET, TOKEN, user, users_in
from tests.flight.parts import Flown

USERS = [user("bob", ("publish", "orders"), ("consume", "orders"), token=TOKEN)]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    users_in(tmp_path / "data", USERS)
    with Flown(tmp_path / "data", callers=CallersConfig(anonymous="off")) as flown:
        yield f"grpc://127.0.0.1:{flown.flight.port}"


@pytest.mark.parametrize("shown", [f"bob:{SECRET}", TOKEN])
def test_a_client_publishes_receives_and_reads_what_it_may(url: str, shown: str) -> None:
    with Client(url, token=shown, patience="10s") as client:
        client.publish("orders", b"a shirt")
        with client.subscribe("orders", "billing", earliest=True) as subscription:
            batch = subscription.take("30s")
            assert batch is not None
            assert [message.body for message in batch] == [b"a shirt"]
        assert sum(len(batch) for batch in client.read("orders")) == 1
        assert [topic.name for topic in client.topics()] == ["orders"]
        with pytest.raises(Refusal, match="may not publish topic payments") as caught:
            client.publish("payments", b"x")
        assert caught.value.code == "forbidden"
        with pytest.raises(Refusal, match="may not delete"):
            client.delete_topic("orders")


def test_a_token_comes_from_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with Client(url, token_file=str(file), patience="10s") as client:
        client.publish("orders", b"x")

    async def publish() -> None:
        async with AsyncClient(url, token_file=str(file), patience="10s") as asynchronous:
            await asynchronous.publish("orders", b"x")

    asyncio.run(publish())
    with pytest.raises(ConfigError, match="the token cannot be read from /nowhere"):
        Client(url, token_file="/nowhere")


@pytest.mark.parametrize("shown", ["", "wrong", "bob:a wrong secret"])
def test_a_client_that_shows_too_little_is_told_so_and_no_secret_is(url: str, shown: str) -> None:
    with Client(url, token=shown, patience="5s") as client, pytest.raises(Refusal) as caught:
        client.publish("orders", b"x")
    assert caught.value.code == "unauthorized"
    assert "wrong" not in str(caught.value)


def test_nothing_that_holds_a_secret_shows_it() -> None:
    held = (
        Access("grpc://n:1", SECRET),
        Place(url="grpc://n:1", token=SECRET),
        Config(token=SECRET, parts=(NsqConfig(lookupd_token=SECRET),)),
        USERS,
    )
    assert SECRET not in repr(held)
    assert USERS[0].secret not in repr(held)
