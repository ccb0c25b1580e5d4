"""Spark beside Penstock and its peers: a process with a session, and the same messages in every place it reads."""
