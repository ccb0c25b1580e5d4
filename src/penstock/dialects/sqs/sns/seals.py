"""Signatures of envelopes, made beside the loop: one takes as long as a hundred messages."""

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

T = TypeVar("T")


class Sealed(NamedTuple):
    """Signatures, in the order of what was to be signed, and the path of the certificate."""

    signatures: list[str]
    path: str


class Seals:
    """The signer of one node; it is there when the first envelope needs it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._signer: Signer | None = None

    def sign(self, texts: Sequence[str], version: str) -> Answer[Sealed]:
        """Answer with signatures; who asks first is answered first."""
        return self._ask(partial(self._sealed, texts, version))

    def certificate(self, path: str) -> Answer[bytes | None]:
        """Answer with the certificate that is served under a path, None if it is another's."""
        return self._ask(partial(self._pem, path))

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
        return Sealed(signer.signatures(texts, version), signer.path)

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
