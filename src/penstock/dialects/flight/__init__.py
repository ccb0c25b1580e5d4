"""The Flight dialect: topics as Arrow streams for any Flight client (the native protocol)."""
