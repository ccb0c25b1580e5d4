"""The configuration of one node: a frozen tree of values, how it is loaded, and where each value came from."""

from penstock.config.check import check, check_certificate, check_order, host_and_port, is_loopback
from penstock.config.keys import Key, Keys
from penstock.config.load import Loaded, load
from penstock.config.part import Endpoint, Part, endpoints
from penstock.config.tree import (
    Config,
    EventsConfig,
    LimitsConfig,
    LogConfig,
    NodeConfig,
    PipelineConfig,
    Section,
    TopicConfig,
)
from penstock.units.quantity import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "Config",
    "Endpoint",
    "EventsConfig",
    "Key",
    "Keys",
    "LimitsConfig",
    "Loaded",
    "LogConfig",
    "NodeConfig",
    "Part",
    "PipelineConfig",
    "Section",
    "TopicConfig",
    "check",
    "check_certificate",
    "check_order",
    "endpoints",
    "format_duration",
    "format_size",
    "host_and_port",
    "is_loopback",
    "load",
    "parse_duration",
    "parse_size",
]
