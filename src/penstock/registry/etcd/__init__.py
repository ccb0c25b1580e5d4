"""etcd, for nodes that keep what they remember there, and for whoever reads what others keep in it.

Imported only where the configuration names etcd: gRPC is nothing that a node on its own should load.
"""

import os

# gRPC writes what it thinks of a connection to stderr, past the log; whoever asked hears it as an error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
