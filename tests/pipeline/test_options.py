"""Options are checked at the edge: what cannot be meant names itself and the nearest that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.pipeline.options import EARLIEST, LATEST, for_batch, for_stream, parsed
from penstock.pipeline.target import parsed as target

HERE = {"path": "/data", "subscribe": "orders"}


def test_everything_has_a_default_but_where_and_what() -> None:
    options = parsed(HERE)
    assert (options.path, options.topics, options.strict, options.headers) == ("/data", ("orders",), True, True)
    assert options.starting is None
    assert options.access is None


def test_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    options = parsed({"PATH": "file:///data", "subscribe": " a , b ", "maxoffsetspertrigger": "10"})
    assert (options.path, options.topics, options.offsets_max) == ("/data", ("a", "b"), 10)


def test_a_name_with_a_comma_is_written_as_json() -> None:
    assert parsed({"path": "/d", "subscribe": '["a,b", "c"]'}).topics == ("a,b", "c")


def test_offsets_are_words_or_json_by_shard() -> None:
    assert parsed({**HERE, "startingOffsets": "Earliest"}).starting == EARLIEST
    assert parsed({**HERE, "startingOffsets": "latest"}).starting == LATEST
    assert parsed({**HERE, "endingOffsets": '{"orders":{"0":23,"1":-1}}'}).ending == {"orders": {0: 23, 1: -1}}


def test_traffic_is_kept_as_the_log_keeps_it() -> None:
    assert parsed({**HERE, "traffic": "0x8000000000000001"}).traffic == 1 - (1 << 63)
    assert parsed({**HERE, "traffic": "5"}).traffic == 5


def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("bob:a secret\nmore\n")
    access = parsed({"url": "grpc://n:1", "tokenFile": str(file), "subscribe": "a"}).access
    assert access is not None
    assert access.token == "bob:a secret"
    assert "secret" not in repr(access)
    file.write_text("")
    with pytest.raises(ConfigError, match="its first line is empty"):
        parsed({"url": "grpc://n:1", "tokenFile": str(file), "subscribe": "a"})


def test_a_node_has_an_address_a_token_and_roots(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(b"pem")
    access = parsed({"url": "grpc+tls://n:1", "token": "t", "tlsRoots": str(roots), "subscribe": "a"}).access
    assert access is not None
    assert (access.url, access.token, access.tls_roots) == ("grpc+tls://n:1", "t", b"pem")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribes": "a"}, "no option subscribes; did you mean subscribe?"),
        ({"kafka.bootstrap.servers": "x"}, "no option kafka.bootstrap.servers"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger is 'many': a whole number, 1 or more"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsets": "earlist"}, "option startingOffsets is 'earlist': did you mean earliest?"),
        ({"startingOffsets": "{"}, "option startingOffsets is not JSON"),
        ({"startingOffsets": '{"orders":5}'}, "needs offsets by shard"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-2 for earliest"),
        ({"startingOffsets": '{"orders":{"x":1}}'}, "no offset of a shard"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe': true or false"),
        ({"traffic": "metrics"}, "option traffic is 'metrics'"),
        ({"traffic": "0"}, "option traffic"),
        ({"buckets": "5-9"}, "option buckets is '5-9': low:high"),
        ({"buckets": "9:5"}, "option buckets"),
        ({"subscribe": "a,,b"}, "option subscribe"),
        ({"subscribe": '["a", 5]'}, "option subscribe"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"subscribePattern": "a.*"}, "option subscribePattern, one of both"),
        ({"url": "http://x"}, "option url"),
        ({"tlsRoots": "/nowhere"}, "option tlsRoots is /nowhere, which cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed({**HERE, **given})
    assert text in str(caught.value)


def test_where_and_what_must_be_said() -> None:
    with pytest.raises(ConfigError, match="option path to a data directory, or option url"):
        parsed({"subscribe": "a"})
    with pytest.raises(ConfigError, match="option subscribe to their names"):
        parsed({"path": "/d"})


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match=r"option endingOffsets is for batch reads.*did you mean startingOffsets"):
        for_stream({"endingoffsets": "latest"})


def test_a_batch_read_does_not_begin_at_the_end() -> None:
    with pytest.raises(ConfigError, match=r"option startingOffsets cannot be latest \(-1\) in a batch read"):
        for_batch(parsed({**HERE, "startingOffsets": "latest"}))
    with pytest.raises(ConfigError, match="option endingOffsets cannot be earliest"):
        for_batch(parsed({**HERE, "endingOffsets": '{"orders":{"0":-2}}'}))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("kafka.bootstrap.servers", "set option url to the node, as grpc://host:7071"),
        ("kafka.group.id", "options token, tokenFile and tlsRoots say who comes"),
        ("assign", "set option subscribe to the topics, and choose shards by where"),
    ],
)
def test_options_of_kafkas_source_are_told_what_they_are_here(name: str, way: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no option {name}; .*{way}"):
        parsed({**HERE, name: "x"})
    with pytest.raises(ConfigError, match=f"there is no option {name}; "):
        target({"url": "grpc://n:1", "topic": "t", name: "x"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxTriggerDelay": "1m"}, "option maxTriggerDelay needs option minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "option maxTriggerDelay: "),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger is 5, and max.* is 4"),
        ({"startingOffsetsByTimestamp": "12"}, "milliseconds since 1970 by topic and shard"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "has a time before 1970"),
    ],
)
def test_what_a_trigger_waits_for_must_make_sense(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed({**HERE, **given})
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger is for streams"):
        for_batch(parsed({**HERE, "minOffsetsPerTrigger": "5"}))
