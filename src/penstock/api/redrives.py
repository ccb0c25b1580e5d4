"""Redrive over HTTP: dead letters go back to where they failed."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.moves.redrive import Redriven, redrive

REDRIVE_ROWS_MAX = 1_000_000


class RedriveBody(msgspec.Struct):
    """Where to (null: to the topic each letter failed in), and how many at most."""

    to: str | None = None
    max: Annotated[int, Meta(ge=1, le=REDRIVE_ROWS_MAX)] = REDRIVE_ROWS_MAX


class RedriveInfo(msgspec.Struct):
    """How many letters were moved, by topic; `left` stay, for the reason in `problem`."""

    moved: int
    topics: dict[str, int]
    left: int
    problem: str | None


async def redrive_topic(call: Call[Nothing, RedriveBody]) -> RedriveInfo:
    """Move dead letters back; it goes on if the client hangs up, and after a crash nothing is moved twice."""
    topic = call.topic()
    if call.body.to is not None:
        call.caller.check("publish", call.body.to)
    ended: asyncio.Future[Redriven] = asyncio.get_running_loop().create_future()

    def done(result: Redriven) -> None:
        if not ended.done():
            ended.set_result(result)

    caller = call.caller
    await redrive(call.node, topic, call.body.to, call.body.max, done, lambda name: caller.may("publish", name))
    result = await ended
    return RedriveInfo(result.moved, result.topics, result.left, result.problem)


ENDPOINTS = (
    Endpoint(
        "POST",
        PREFIX + "/topics/{topic}/redrive",
        redrive_topic,
        "Move dead letters of this topic back",
        RedriveInfo,
        body=RedriveBody,
    ),
)
