"""The configuration of one node: a frozen tree of values, how it is loaded, and where each value came from."""

from penstock.config.check import check, host_and_port, is_loopback, quantile
from penstock.config.keys import KEYS, Key
from penstock.config.load import Loaded, load
from penstock.config.tree import (
    ApiConfig,
    Config,
    EventsConfig,
    FlightConfig,
    LogConfig,
    NodeConfig,
    NsqConfig,
    PipelineConfig,
    TopicConfig,
)
from penstock.quantity import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "KEYS",
    "ApiConfig",
    "Config",
    "EventsConfig",
    "FlightConfig",
    "Key",
    "Loaded",
    "LogConfig",
    "NodeConfig",
    "NsqConfig",
    "PipelineConfig",
    "TopicConfig",
    "check",
    "format_duration",
    "format_size",
    "host_and_port",
    "is_loopback",
    "load",
    "parse_duration",
    "parse_size",
    "quantile",
]
