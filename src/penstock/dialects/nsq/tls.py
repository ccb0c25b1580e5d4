"""TLS as NSQ connections and HTTPS get it: certificate, key, oldest version, whether clients must show one too.

Owns the context that is made of the configuration. Knows nothing of connections; what is agreed on one is `wire.tls`'s.
Invariant: where a certificate is asked of clients, one that nobody vouches for is as good as none.
"""

from __future__ import annotations

import ssl

from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.wire import tls as wire


def server_context(config: Config) -> ssl.SSLContext | None:
    """Return what a configuration asks for, None where it names no certificate."""
    nsq = config.of(NsqConfig)
    certificate, key = nsq.tls_cert or config.tls_cert, nsq.tls_key or config.tls_key
    if not certificate:
        return None
    context = wire.server_context(certificate, key, max(nsq.tls_min_version, config.tls_min_version))
    if nsq.tls_client_auth_policy != "none":
        # Python's TLS has no way to ask for a certificate and take any, so `require` checks it as well.
        wire.ask_clients(context, nsq.tls_root_ca_file, "nsq.tls_root_ca_file")
    elif config.tls_client_ca:
        wire.ask_clients(context, config.tls_client_ca, "tls_client_ca", required=False)
    return context
