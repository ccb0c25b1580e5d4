"""Fan-out: a name under which a message is published to several topics at once."""

from penstock.fanout.fanouts import Fanouts
from penstock.fanout.record import FanoutRecord, Target

__all__ = ["FanoutRecord", "Fanouts", "Target"]
