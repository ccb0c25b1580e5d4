"""What a cluster is: its name and how many slots it has, as its first node wrote them down."""

from __future__ import annotations

import msgspec

from penstock import __version__
from penstock.clock import Clock
from penstock.cluster.places import ABOUT, FORMAT, About
from penstock.config import ClusterConfig
from penstock.errors import ConfigError, CorruptionError
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt
from penstock.registry.records import decoded
from penstock.registry.registry import Registry


def agree(registry: Registry, clock: Clock, config: ClusterConfig) -> Answer[About]:
    """Answer with what the cluster is; a registry that has none gets this one."""
    name = config.name

    def compose() -> Draft[About]:
        entry = registry.get(ABOUT)
        if entry is None:
            about = About(name=name, slots=config.slots)
            return Draft(about, {ABOUT: msgspec.msgpack.encode(about)}, (), {ABOUT: 0})
        try:
            about = decoded(entry.value, About, ABOUT)
        except CorruptionError as error:
            raise ConfigError(f"{error}. Choose another registry.prefix, or mend what stands there") from None
        if about.format != FORMAT:
            older = "a newer" if about.format > FORMAT else "an older"
            raise ConfigError(
                f"cluster {about.name} was made by {older} version of Penstock (format {about.format}; this is "
                f"{__version__}, format {FORMAT}); run the version that its other nodes run"
            )
        if about.name != name:
            raise ConfigError(
                f'cluster.name = "{name}": the registry holds cluster {about.name}. Set cluster.name to that to '
                "join it, or give this cluster a registry.prefix of its own"
            )
        if not 0 < about.slots <= 4096:
            raise ConfigError(f"{ABOUT} in the registry says {about.slots} slots; choose another registry.prefix")
        return Draft(about)

    return attempt(registry, clock, compose)
