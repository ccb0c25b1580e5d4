"""Bytes to requests and answers to bytes: JSON, and the older form of queries and XML."""
