"""A pipeline as it runs: its queries, where their rows go, and what is told about them."""
