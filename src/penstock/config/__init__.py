"""The configuration of one node: a frozen tree of values, how it is loaded, and where each value came from."""

from penstock.config.check import (
    check,
    check_certificate,
    check_order,
    exposed,
    has_callers,
    host_and_port,
    is_loopback,
    lacks,
    users_file,
)
from penstock.config.keys import Key, Keys
from penstock.config.load import Loaded, load, secret_in, shown_token
from penstock.config.part import TOKEN_AND_TLS, Endpoint, Part, endpoints
from penstock.config.tree import (
    CallersConfig,
    Config,
    EventsConfig,
    LimitsConfig,
    LogConfig,
    MemoryConfig,
    NodeConfig,
    PipelineConfig,
    Section,
    TopicConfig,
)
from penstock.units.quantity import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "TOKEN_AND_TLS",
    "CallersConfig",
    "Config",
    "Endpoint",
    "EventsConfig",
    "Key",
    "Keys",
    "LimitsConfig",
    "Loaded",
    "LogConfig",
    "MemoryConfig",
    "NodeConfig",
    "Part",
    "PipelineConfig",
    "Section",
    "TopicConfig",
    "check",
    "check_certificate",
    "check_order",
    "endpoints",
    "exposed",
    "format_duration",
    "format_size",
    "has_callers",
    "host_and_port",
    "is_loopback",
    "lacks",
    "load",
    "parse_duration",
    "parse_size",
    "secret_in",
    "shown_token",
    "users_file",
]
