"""The SDK: publish, subscribe and read over Arrow Flight."""
