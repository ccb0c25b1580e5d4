"""Tables in a lake: files that Spark, DuckDB and Polars read without Penstock."""
