"""Rollup: metric samples in messages become aggregates per storage policy, by M3's rules.

Owns what a sample is, when it is late and what an aggregate is worth. Knows nothing of where rows come from or go.
Invariant: a batch over the same messages gives what a stream gave, once the stream was past its last window.
"""

from penstock.m3.policies import StoragePolicy
from penstock.pipeline.jobs.rollup.job import messages, rolled
from penstock.pipeline.jobs.rollup.options import Rollup

__all__ = ["Rollup", "StoragePolicy", "messages", "rolled"]
