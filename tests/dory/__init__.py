"""Dory in."""
