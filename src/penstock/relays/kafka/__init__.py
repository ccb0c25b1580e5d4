"""Kafka out: messages of topics go to Kafka's topics of the same names, as Dory would send them."""
