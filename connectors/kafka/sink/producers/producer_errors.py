"""What an error says of `init_transactions`: refused for good, or still on its way. Pure."""

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
    """`init_transactions` was sent, and may yet happen: its id is never used again
    (`ids-never-reused`).

    Attributes:
        reason: what people are told, who may have to mend something else than a slow broker.
    """

    def __init__(self, reason: StreamError) -> None:
        super().__init__(*reason.args)
        self.reason = reason


class UnsentError(UnreachableError):
    """`init_transactions` was not even sent: nobody answers before that."""


class NotReadyError(UnreachableError):
    """Nothing has failed, and time ran out: to make the producer ready goes on."""


class LateRequestError(UnansweredError):
    """It has happened, and the client had sent it before as well, or what it was refused for is
    mended: another id is as good."""


def is_answer(error: KafkaError) -> bool:
    """Whether the broker itself has refused, which ends the request; the client's own codes are
    negative, and say nothing about what it has sent."""
    is_refusal = error.code() > 0 and not error.retriable()
    return is_refusal and not isinstance(translate(error), UnreachableError)


def weight(error: KafkaError) -> int:
    """Of a client's errors the heaviest is remembered: its end first, then what only a human can
    mend."""
    return 2 if error.fatal() else int(isinstance(translate(error), AuthenticationError))
