"""Meaning of an error of `init_transactions`: refused for good, or still pending. Pure."""

from sluice.connectors.kafka.client.confluent import KafkaError, translate
from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError

__all__ = [
    "LateRequestError",
    "NotReadyError",
    "UnansweredError",
    "UnsentError",
    "is_answer",
    "weight",
]


class UnansweredError(UnreachableError):
    """`init_transactions` was sent, and may yet take effect: its id is never used again
    (`ids-never-reused`).

    Attributes:
        reason: shown to people, who may have to correct more than a slow broker.
    """

    def __init__(self, reason: StreamError) -> None:
        super().__init__(*reason.args)
        self.reason = reason


class UnsentError(UnreachableError):
    """`init_transactions` was not sent: no broker answered before."""


class NotReadyError(UnreachableError):
    """Nothing has failed, but the time ran out: the preparation continues."""


class LateRequestError(UnansweredError):
    """It took effect, and the client had sent it before, too, or the cause of its refusal is
    corrected: another id works as well."""


def is_answer(error: KafkaError) -> bool:
    """Whether the broker itself has refused, which ends the request; the client's own codes are
    negative, and do not show whether the request was sent."""
    is_refusal = error.code() > 0 and not error.retriable()
    return is_refusal and not isinstance(translate(error), UnreachableError)


def weight(error: KafkaError) -> int:
    """Keeps the most severe of a client's errors: its end first, then errors that only a person can
    correct."""
    return 2 if error.fatal() else int(isinstance(translate(error), AuthenticationError))
