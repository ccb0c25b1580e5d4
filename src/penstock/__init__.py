"""Penstock: a message broker that moves batches of rows, not messages."""

__version__ = "0.1.0"
