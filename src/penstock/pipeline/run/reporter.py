"""Tells the node how a pipeline is, so that its API and its metrics show it.

Owns the connection. A node that is away, or too old to listen, costs a pipeline nothing but a moment.
"""

from __future__ import annotations

import logging

from penstock.client.connection import Connection, Unreachable
from penstock.client.wire import PipelineReport
from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.pipeline.plan.document import Place
from penstock.pipeline.target import parsed

CALL_S = 2.0

_log = logging.getLogger(__name__)


class Reporter:
    """The line to the node of one pipeline."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: Connection | None = None
        self._refused = False

    def tell(self, report: PipelineReport) -> None:
        """Send a report, if the node can be reached."""
        if self._refused:
            return
        try:
            if self._connection is None:
                self._connection = Connection(parsed(self._place.options()).node(), CALL_S)
            self._connection.report(report)
        except Refusal as refusal:
            self._refused = True  # it would say the same again and again
            _log.warning("the node does not take reports of this pipeline: %s", refusal)
        except (Unreachable, ConfigError):
            self.close()
        except PenstockError as error:
            self.close()
            _log.warning("the node was not told how this pipeline is: %s", error)

    def close(self) -> None:
        """Hang up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
