"""Timelines: messages that are due at a time, on lease from then on."""
