"""Replay: messages of a topic or of a lake table, published again, each once."""

from penstock.pipeline.jobs.replay.options import Replay
from penstock.pipeline.jobs.replay.plan import Plan, Share, Step
from penstock.pipeline.jobs.replay.run import Outcome, Pace, Progress, ends_on, planned, replay

__all__ = ["Outcome", "Pace", "Plan", "Progress", "Replay", "Share", "Step", "ends_on", "planned", "replay"]
