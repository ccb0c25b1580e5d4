"""SNS: topics that copy what is published to queues."""
