"""The jobs: each a function from DataFrames to DataFrames, with its options as one checked value."""
