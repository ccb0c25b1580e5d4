"""Tests of the rollup job."""
