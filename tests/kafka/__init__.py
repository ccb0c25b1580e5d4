"""Kafka: our own wire against a real broker, librdkafka and Kafka's own tools."""
