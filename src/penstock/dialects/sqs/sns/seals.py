"""Signatures of envelopes, made beside the loop: one takes as long as a hundred messages.

Invariant: in a cluster nothing is signed before every node can show the certificate; a client may ask any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.node.node import Node
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.dialects.sqs.sns.signer import Signer

POOL = "sign"

#: How the paths of certificates begin.
CERTIFICATES = "/SimpleNotificationService-"
#: The registry of a cluster has them under this, by the rest of their paths.
KEYS = "certificate/"

T = TypeVar("T")


class Sealed(NamedTuple):
    """Signatures, in the order of what was to be signed, and the certificate with its path."""

    signatures: list[str]
    path: str
    pem: bytes


class Seals:
    """The signer of one node; it is there when the first envelope needs it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._signer: Signer | None = None
        #: The certificate goes to the registry.
        self._putting: Answer[None] | None = None

    def sign(self, texts: Sequence[str], version: str) -> Answer[Sealed]:
        """Answer with signatures; who asks first is answered first."""
        sealed = self._ask(partial(self._sealed, texts, version))
        return sealed.then_ask(self._told) if self._node.config.cluster.name else sealed

    def certificate(self, path: str) -> Answer[bytes | None]:
        """Answer with the certificate that is served under a path, None if nobody knows it."""
        entry = self._node.registry.get(_key(path))
        return Answer.of(entry.value) if entry is not None else self._ask(partial(self._pem, path))

    def _told(self, sealed: Sealed) -> Answer[Sealed]:
        """Answer with what was sealed once all nodes know the certificate; those behind wait as well."""
        if self._putting is None:
            if self._node.registry.get(_key(sealed.path)) is not None:
                return Answer.of(sealed)
            putting = self._putting = self._node.catalog.put(_key(sealed.path), sealed.pem)
            putting.then(self._put)
        else:
            putting = self._putting
        return putting.then_make(lambda _: sealed)

    def _put(self, _: None, __: Exception | None) -> None:
        self._putting = None

    def _ask(self, work: partial[T]) -> Answer[T]:
        answer: Answer[T] = Answer()

        def done(found: T | None, error: BaseException | None) -> None:
            if error is not None:
                answer.refuse(error if isinstance(error, Exception) else RuntimeError(str(error)))
            else:
                answer.give(found)  # type: ignore[arg-type]

        self._node.disk.submit(POOL, work, done)
        return answer

    def _sealed(self, texts: Sequence[str], version: str) -> Sealed:
        signer = self._known()
        return Sealed(signer.signatures(texts, version), signer.path, signer.pem)

    def _pem(self, path: str) -> bytes | None:
        signer = self._known()
        return signer.pem if path == signer.path else None

    def _known(self) -> Signer:
        """Return the signer; only the pool's one thread comes here."""
        if self._signer is None:
            # Not at the start: the library takes longer to load than the rest of the dialect, and few need it.
            from penstock.dialects.sqs.sns.signer import Signer

            self._signer = Signer.of(self._node.config.data_dir, self._node.clock.now())
        return self._signer


def _key(path: str) -> str:
    return KEYS + path.removeprefix(CERTIFICATES)
