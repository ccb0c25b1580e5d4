"""What goes wrong, as Amazon names it: in JSON, in XML, and by status.

Owns the one table from a name to both, and from the core's reasons to names. Knows no operation.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import Refusal

_OLD = "AWS.SimpleQueueService."


class Kind(NamedTuple):
    """One error of Amazon's."""

    #: In XML, and in the header that JSON answers carry for clients that go by those names.
    code: str
    status: int = 400
    is_sender: bool = True


#: By the name in JSON. Those that the service's model has come first, then those that every service has.
KINDS: dict[str, Kind] = {
    **{
        name: Kind(_OLD + name)
        for name in (
            "BatchEntryIdsNotDistinct",
            "BatchRequestTooLong",
            "EmptyBatchRequest",
            "InvalidBatchEntryId",
            "MessageNotInflight",
            "QueueDeletedRecently",
            "TooManyEntriesInBatchRequest",
            "UnsupportedOperation",
        )
    },
    "PurgeQueueInProgress": Kind(_OLD + "PurgeQueueInProgress", 403),
    "QueueDoesNotExist": Kind(_OLD + "NonExistentQueue"),
    "QueueNameExists": Kind("QueueAlreadyExists"),
    "InvalidAddress": Kind("InvalidAddress", 404),
    "InvalidAttributeName": Kind("InvalidAttributeName"),
    "InvalidAttributeValue": Kind("InvalidAttributeValue"),
    "InvalidMessageContents": Kind("InvalidMessageContents"),
    "InvalidSecurity": Kind("InvalidSecurity", 403),
    "OverLimit": Kind("OverLimit", 403),
    "ReceiptHandleIsInvalid": Kind("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": Kind("RequestThrottled", 403),
    "ResourceNotFoundException": Kind("ResourceNotFoundException", 404),
    "AccessDeniedException": Kind("AccessDenied", 403),
    # Of SNS.
    "FilterPolicyLimitExceeded": Kind("FilterPolicyLimitExceeded", 403),
    "InvalidParameter": Kind("InvalidParameter"),
    "NotFound": Kind("NotFound", 404),
    "ParameterValueInvalid": Kind("ParameterValueInvalid"),
    "TagLimitExceeded": Kind("TagLimitExceeded"),
    "IncompleteSignature": Kind("IncompleteSignature"),
    "InternalFailure": Kind("InternalFailure", 500, is_sender=False),
    "InvalidAction": Kind("InvalidAction"),
    "InvalidClientTokenId": Kind("InvalidClientTokenId", 403),
    "InvalidParameterValue": Kind("InvalidParameterValue"),
    "MalformedQueryString": Kind("MalformedQueryString", 404),
    # Not Amazon's, whose endpoints are known by one name: what every listener of a node says.
    "MisdirectedRequest": Kind("MisdirectedRequest", 421),
    "MissingAuthenticationToken": Kind("MissingAuthenticationToken", 403),
    "MissingParameter": Kind("MissingParameter"),
    "RequestEntityTooLarge": Kind("RequestEntityTooLarge", 413),
    "SerializationException": Kind("SerializationException"),
    "ServiceUnavailable": Kind("ServiceUnavailable", 503, is_sender=False),
    "SignatureDoesNotMatch": Kind("SignatureDoesNotMatch", 403),
    "ThrottlingException": Kind("Throttling"),
    "UnknownOperationException": Kind("InvalidAction"),
}

#: What SNS calls otherwise than by the name above.
SNS = {
    "AccessDeniedException": "AuthorizationError",
    "InternalFailure": "InternalError",
    "InvalidParameterValue": "ParameterValueInvalid",
    "ResourceNotFoundException": "ResourceNotFound",
    # Not Throttled, which is documented too: SDKs try this one again.
    "ThrottlingException": "Throttling",
}

#: What the core's reasons are called here; a reason that passes by itself is one that SDKs try again.
REASONS = {
    "bad_request": "InvalidParameterValue",
    "bad_name": "InvalidParameterValue",
    "bad_column": "InvalidParameterValue",
    "bad_offset": "InvalidParameterValue",
    "due_too_far": "InvalidParameterValue",
    "message_too_big": "RequestEntityTooLarge",
    "unauthorized": "MissingAuthenticationToken",
    "forbidden": "AccessDeniedException",
    "not_found": "QueueDoesNotExist",
    "gone": "QueueDoesNotExist",
    "conflict": "UnsupportedOperation",
    "rate_limited": "ThrottlingException",
    "limit_reached": "OverLimit",
    "too_many_connections": "ThrottlingException",
    "misdirected": "MisdirectedRequest",
    "method_not_allowed": "InvalidAction",
    "not_leased": "MessageNotInflight",
    "too_slow": "SerializationException",
}


class Fault(Exception):
    """A request that is refused, by Amazon's name for it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        self.kind = KINDS[name]

    @property
    def sns_code(self) -> str:
        """What SNS calls it."""
        return SNS.get(self.name, self.name)

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Return what an error is called here."""
        if isinstance(error, Fault):
            return error
        if isinstance(error, Refusal):
            return cls(REASONS.get(error.code, "ServiceUnavailable"), str(error))
        return cls("InternalFailure", "The node failed inside; its log says more.")


def no_queue() -> Fault:
    """Return what is said of a queue that is not there."""
    return Fault("QueueDoesNotExist", "The specified queue does not exist.")


def invalid(name: str, value: object, reason: str) -> Fault:
    """Return what is said of a parameter that cannot be."""
    return Fault("InvalidParameterValue", f"Value {value} for parameter {name} is invalid. Reason: {reason}")


def within(name: str, value: int | None, low: int, high: int) -> int | None:
    """Return a number that may be left out; refuse one outside its bounds."""
    if value is not None and not low <= value <= high:
        raise invalid(name, value, f"Must be >= {low} and <= {high}, if provided.")
    return value


def missing(name: str) -> Fault:
    """Return what is said of a parameter that must be there."""
    return Fault("MissingParameter", f"The request must contain the parameter {name}.")
