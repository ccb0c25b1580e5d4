"""A pipeline as it is declared: read, put in order, and checked before anything runs."""
