"""Penstock beside its peers on this machine: `python -m bench` prints one line per row of the target table.

Every row starts the peer and Penstock in the same run, lets them take turns, and compares medians.
"""
