"""A real etcd for all tests here."""

from tests.etcd.conftest import one

__all__ = ["one"]
