"""What brokers that share a registry agree on: topics that come and go, who is there, who has which buckets."""
