"""Loading the configuration: precedence, origin, and errors that say what to do."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.table import TABLE, load
from penstock.config import Config, Keys, Loaded, host_and_port
from penstock.dialects.nsq.config import NsqConfig
from penstock.errors import ConfigError

#: Every setting.
KEYS = Keys(TABLE)


def refused(file: str | None = None, environment: dict[str, str] | None = None, **flags: object) -> str:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    with pytest.raises(ConfigError) as caught:
        load(file, dotted, environment or {})
    return str(caught.value)


def written(directory: Path, text: str) -> str:
    path = directory / "penstock.toml"
    path.write_text(text)
    return str(path)


def test_without_anything_the_defaults_stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load(environment={})
    assert loaded.config == Config()
    assert set(loaded.origin.values()) == {"default"}
    assert loaded.config.node.ack_flush_ns == 10_000_000
    assert loaded.config.of(NsqConfig).max_msg_size == 1 << 20


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    file = written(tmp_path, "[nsq]\ntcp_port = 1\nhttp_port = 2\nmax_rdy_count = 3\n")
    environment = {"PENSTOCK_NSQ_TCP_PORT": "11", "PENSTOCK_NSQ_HTTP_PORT": "12", "HOME": "/"}
    loaded = load(file, {"nsq.tcp_port": 21}, environment)
    nsq = loaded.config.of(NsqConfig)
    assert (nsq.tcp_port, nsq.http_port, nsq.max_rdy_count, nsq.max_channel_consumers) == (21, 12, 3, 0)
    assert loaded.origin["nsq.tcp_port"] == "flag"
    assert loaded.origin["nsq.http_port"] == "environment PENSTOCK_NSQ_HTTP_PORT"
    assert loaded.origin["nsq.max_rdy_count"] == f"file {file}"
    assert loaded.origin["nsq.max_channel_consumers"] == "default"


def test_penstock_toml_of_the_working_directory_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, 'data_dir = "elsewhere"')
    loaded = load(environment={})
    assert loaded.config.data_dir == "elsewhere"
    assert loaded.origin["data_dir"] == "file penstock.toml"


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "port_offset = 5")
    assert load(environment={"PENSTOCK_CONFIG": file}).config.port_offset == 5


def test_the_process_environment_is_used_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    assert load().config.log.format == "json"


def test_durations_sizes_and_switches_are_text(tmp_path: Path) -> None:
    node = '[node]\nack_flush = 0\ndrain_timeout = "1m30s"\n'
    file = written(tmp_path, f'insecure = true\n{node}[memory]\ncache_bytes = "1GB"\n')
    environment = {"PENSTOCK_INSECURE": "False", "PENSTOCK_MEMORY_INPUT_BYTES": "64MiB"}
    config = load(file, None, environment).config
    assert not config.insecure
    assert config.node.ack_flush_ns == 0
    assert config.memory.cache_bytes == 10**9
    assert config.memory.input_bytes == 64 << 20
    assert config.node.drain_timeout_ns == 90_000_000_000


def test_every_key_can_be_set_to_its_default_by_its_variable() -> None:
    environment = {key.environment: key.text(key.default) for key in KEYS.values()}
    assert len(environment) == len(KEYS)
    loaded = load(environment=environment)
    assert loaded.config == Config()
    assert all(origin.startswith("environment PENSTOCK_") for origin in loaded.origin.values())


def test_a_topic_starts_with_the_configured_settings() -> None:
    loaded = load(flags={"topic.durability": "fsync", "topic.segment_bytes": "1MiB"}, environment={})
    settings = loaded.config.topic.settings()
    assert (settings.durability, settings.segment_bytes, settings.retention_hard) == ("fsync", 1 << 20, False)


def test_retention_bytes_set_by_the_user_also_bind_topics_without_subscriptions() -> None:
    loaded = load(flags={"topic.retention_bytes": "1GiB"}, environment={})
    assert loaded.config.topic.settings().retention_hard
    assert loaded.origin["topic.retention_hard"] == "follows topic.retention_bytes"
    chosen = load(flags={"topic.retention_bytes": "1GiB", "topic.retention_hard": False}, environment={})
    assert not chosen.config.topic.retention_hard


def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = written(tmp_path, "[nsq]\ntcp_prot = 1\n")
    assert refused(file) == f"file {file}: nsq.tcp_prot is not a setting; did you mean nsq.tcp_port?"
    assert refused(written(tmp_path, "[nsqq]\ntcp_port = 1\n")).endswith("did you mean nsq?")
    assert refused(written(tmp_path, 'data-dir = "x"')).endswith("did you mean data_dir?")
    assert refused(environment={"PENSTOCK_DATADIR": "x"}) == (
        "environment PENSTOCK_DATADIR is not a setting; did you mean PENSTOCK_DATA_DIR?"
    )
    assert refused(tokn="x") == "flag: tokn is not a setting; did you mean token?"


def test_a_key_in_the_wrong_section_is_found() -> None:
    assert refused(tcp_port=1).endswith("did you mean nsq.tcp_port?")
    assert refused(node__durability="os").endswith("did you mean topic.durability?")


def test_a_name_like_no_other_points_to_the_list() -> None:
    assert refused(qqqqqq=1).endswith("`penstock config show` lists them all")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[api]\nport = "7070"', 'api.port is "7070", text; it must be a whole number'),
        ("[api]\nport = 1.5", "api.port is 1.5, a number; it must be a whole number"),
        ("[api]\nport = 70000", "api.port is 70000; it must be at most 65535"),
        ("data_dir = 5", "data_dir is 5, a number; it must be text"),
        ("data_dir = []", "data_dir is [], a list; it must be text"),
        ("insecure = 1", "insecure is 1, a number; it must be true or false"),
        ('[log]\nlevel = "loud"', 'log.level is "loud"; it must be one of "debug", "info", "warning", "error"'),
        ("[node]\nack_flush = 10", 'node.ack_flush: 10 has no unit; write a text like "10s"'),
        ("[node]\nack_flush = -1", "node.ack_flush is -1; it must be at least 0"),
        ("[node]\nack_flush = true", 'node.ack_flush is true, a switch; it must be a duration, like "30s"'),
        ('[node]\nack_flush = "soon"', 'node.ack_flush: "soon" is not a duration'),
        ("[nsq]\nmax_rdy_count = 0", "nsq.max_rdy_count is 0; it must be at least 1"),
        ('[topic]\nsegment_bytes = "1KiB"', "topic.segment_bytes is 1KiB; it must be at least 64KiB"),
        ("nsq = 5", "nsq is a section; write [nsq] and its keys below it"),
        ("token = 12345", "token is a number; it must be text"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_should_be(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    message = refused(file)
    assert message.startswith(f"file {file}: {said}")


def test_a_wrong_value_in_the_environment_names_the_variable() -> None:
    message = refused(environment={"PENSTOCK_API_PORT": "many"})
    assert message == 'environment PENSTOCK_API_PORT: api.port is "many", text; it must be a whole number'


def test_a_section_is_no_setting() -> None:
    assert "nsq is a section, not a setting" in refused(nsq=1)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    assert refused(missing).startswith(f"{missing}: no such file")
    assert "cannot be read" in refused(str(tmp_path))
    assert "not valid TOML" in refused(written(tmp_path, "data_dir = \n"))
    (tmp_path / "penstock.toml").write_bytes(b'data_dir = "\xff"')
    assert "not UTF-8 text at byte 12" in refused(str(tmp_path / "penstock.toml"))


@given(st.binary(max_size=200))
def test_any_bytes_as_a_file_load_or_are_a_config_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("config") / "penstock.toml"
    path.write_bytes(data)
    try:
        assert isinstance(load(str(path), None, {}), Loaded)
    except ConfigError as error:
        assert str(path) in str(error)


def test_a_printed_configuration_hides_the_token_and_shows_origins() -> None:
    rows = {name: (text, origin) for name, text, origin in load(flags={"token": "hunter2"}, environment={}).rows()}
    assert list(rows) == list(KEYS)
    assert rows["token"] == ("(set)", "flag")
    assert rows["node.ack_flush"] == ("10ms", "default")
    assert rows["nsq.max_msg_size"] == ("1MiB", "default")


def test_a_list_is_a_list_in_a_file_and_text_with_commas_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "list.toml"
    file.write_text('[nsq]\nlookupd_tcp_addresses = ["a:1", "b:2"]\n')
    wanted = ("a:1", "b:2")
    assert load(str(file), {}, {}).config.of(NsqConfig).lookupd_tcp_addresses == wanted
    loaded = load(os.devnull, {}, {"PENSTOCK_NSQ_LOOKUPD_TCP_ADDRESSES": "a:1, b:2,"})
    assert loaded.config.of(NsqConfig).lookupd_tcp_addresses == wanted
    assert ("nsq.lookupd_tcp_addresses", "a:1,b:2") in [row[:2] for row in loaded.rows()]
    file.write_text('[nsq]\nlookupd_tcp_addresses = "a:1"\n')
    with pytest.raises(ConfigError, match=r'it must be a list, like \["127.0.0.1:4160"\]'):
        load(str(file), {}, {})


@pytest.mark.parametrize("address", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:-1", "a:123456"])
def test_a_lookup_service_has_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address; write HOST:PORT"):
        load(os.devnull, {"nsq.lookupd_tcp_addresses": [address]}, {})


def test_hosts_of_either_family_are_understood() -> None:
    assert host_and_port("[::1]:4160") == ("::1", 4160)
    assert host_and_port("lookup.example:4160") == ("lookup.example", 4160)


def test_zones_of_etcd_have_names_of_ones_own(tmp_path: Path) -> None:
    file = written(tmp_path, '[etcd.zones.eu-west]\nendpoints = ["a:1", "b:2"]\nuser = "me"\n')
    environment = {"PENSTOCK_ETCD_ZONES_EU_WEST_PASSWORD": "s3cret", "PENSTOCK_ETCD_ZONES_DEFAULT_TLS": "true"}
    loaded = load(file, {"etcd.zones.third.endpoints": "c:3,d:4"}, environment)
    zones = loaded.config.etcd.zones
    assert list(zones) == ["default", "eu-west", "third"]
    assert (zones["eu-west"].endpoints, zones["eu-west"].password) == (("a:1", "b:2"), "s3cret")
    assert "s3cret" not in repr(loaded.config)
    assert zones["third"].endpoints == ("c:3", "d:4")
    assert (zones["default"].endpoints, zones["default"].tls) == (("127.0.0.1:2379",), True)
    rows = {name: (value, origin) for name, value, origin in loaded.rows()}
    assert rows["etcd.zones.eu-west.endpoints"] == ("a:1,b:2", f"file {file}")
    assert rows["etcd.zones.eu-west.password"][0] == "(set)"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[etcd.zones.west]\nendpoint = []", "etcd.zones.west.endpoint is not a setting; did you mean"),
        ("[etcd.zones.west]\nendpoints = []", "etcd.zones.west.endpoints is empty"),
        ("[etcd.zones]\nwest = 1", "etcd.zones.west is a section"),
        ("[etcd]\nzones = 1", "etcd.zones is a section"),
        ('[etcd.zones.west]\nendpoints = ["https://a:1"]', "write HOST:PORT, and tls = true"),
        ('[etcd.zones.west]\nendpoints = ["a"]', 'etcd.zones.west.endpoints: "a" is no address'),
        ('[etcd.zones.west]\nuser = "me"', "etcd.zones.west.password_file is not set"),
        ('[etcd.zones.west]\ntls_ca = "/nowhere"', "etcd.zones.west.tls_ca"),
        ('[registry]\nkind = "etcd"\nzone = "wets"\n[etcd.zones.west]\n', "did you mean west?"),
        ('[registry]\nprefix = "/"', "registry.prefix is empty"),
    ],
)
def test_a_zone_or_registry_that_cannot_work_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(written(tmp_path, text))
