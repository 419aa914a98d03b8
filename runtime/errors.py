"""Errors of Sluice: each says what happened, where, and what to do.

One subclass for each thing a caller does differently (retry, restart the region, fail the job,
call a human), not one per call site. Every argument is positional, because errors cross process
boundaries by pickle.
"""

from collections.abc import Mapping

__all__ = [
    "AuthenticationError",
    "CheckpointFailedError",
    "ConfigError",
    "CoordinatorLostError",
    "DamagedCheckpointError",
    "DataLostError",
    "DeliveryError",
    "DropLimitError",
    "FencedError",
    "FunctionFailedError",
    "IllegalTransitionError",
    "JobFinishedError",
    "LateRecordsError",
    "LeadershipLostError",
    "MissingRequirementError",
    "NotLeaderError",
    "PoisonRecordsError",
    "RegionGivenUpError",
    "RegionUnansweredError",
    "RegionsSuspendedError",
    "RestartCommandedError",
    "SourceChangedError",
    "StorageError",
    "StorageUnreachableError",
    "StreamError",
    "TransactionAbortedError",
    "TransactionLostError",
    "TransactionUnknownError",
    "UnreachableError",
    "UnreadSplitsLostError",
    "UnsupportedFormatError",
    "WaitedTooLongError",
    "WrongJobError",
]


class StreamError(Exception):
    """Base of every error this project raises."""

    def __init__(self, what: str, where: Mapping[str, object], remedy: str) -> None:
        # Not `super`: with an `OSError` it would take them for a number, a text and a path.
        Exception.__init__(self, what, dict(where), remedy)

    def __str__(self) -> str:
        what, where, remedy = self.args
        return f"{what} [{' '.join(f'{k}={v}' for k, v in where.items())}]. {remedy}"


class ConfigError(StreamError):
    """An option is misspelt, out of range, missing, or unsafe in this combination."""


class MissingRequirementError(StreamError):
    """The machine lacks something: Java, a free port, a server's files, an optional package."""


class UnreachableError(StreamError):
    """A broker, file system or coordinator did not answer in time. Nothing was changed."""


class WaitedTooLongError(UnreachableError, TimeoutError):
    """A wait timed out: ``what`` names its object, ``waited_s`` in ``where`` its length.

    The request may still succeed later.
    """


class RegionUnansweredError(UnreachableError):
    """A region did not answer; it may have got the request: query its status, or repeat."""


class WrongServiceError(UnreachableError):
    """Another program, or another run of the job, answers at an address: it refuses the token, or
    its answer is unknown."""


class CoordinatorLostError(UnreachableError):
    """A task received no answer from its coordinator within the heartbeat timeout, and stops."""


class AuthenticationError(StreamError):
    """Credentials or permissions were refused."""


class StorageError(StreamError):
    """The checkpoint store failed, or cannot give the promise that a decision needs."""


class StorageUnreachableError(StorageError):
    """A file system does not answer or refuses writes (safe mode): wait, and try again."""


class DamagedCheckpointError(StreamError):
    """A checkpoint record exists but cannot be read whole. Restore from another one."""


class UnsupportedFormatError(StreamError):
    """A record has a format version, or an entry a kind, that this version does not know."""


class WrongJobError(StreamError):
    """The checkpoint directory belongs to another job."""


class FencedError(StreamError):
    """A newer owner has taken over; this process must stop and change nothing more."""


class NotLeaderError(FencedError):
    """Another coordinator leads the job. A region host finds it and sends the message again; a
    sender without a host stops."""


class LeadershipLostError(NotLeaderError):
    """Another process was elected to lead the job; this one stops, and a start of it waits."""


class JobFinishedError(StreamError):
    """The leader has finished the job while this process waited to take over; no failure."""


class SourceChangedError(StreamError):
    """A topic is missing, was recreated under its name, or lost partitions."""


class UnreadSplitsLostError(SourceChangedError):
    """A partition vanished before any region read it; the job fails, and no region is at fault."""


class DataLostError(StreamError):
    """Records that the job still had to read are gone (retention); the ranges are in ``where``."""


class LateRecordsError(StreamError):
    """Records arrived for a partition that is marked as complete; their epoch is aborted."""


class FunctionFailedError(StreamError):
    """A function fails for records that it takes one by one; their epoch is not pre-committed."""


class PoisonRecordsError(StreamError):
    """A function failed for more records of an epoch than its policy lets through."""


class DropLimitError(StreamError):
    """Approximate recovery would leave out more than it may; the epoch is read again."""


class DeliveryError(StreamError):
    """The broker refused a record, or did not confirm it; its epoch is not pre-committed."""


class TransactionAbortedError(StreamError):
    """The client or its broker has given up a transaction that is not decided; its epoch is written
    again."""


class TransactionLostError(StreamError):
    """A decided transaction was certainly aborted; its source ranges are in ``where``."""


class TransactionUnknownError(StreamError):
    """Kafka no longer knows whether decided work committed; a person must check."""


class IllegalTransitionError(StreamError):
    """A state machine received an event that its table does not allow."""


class RegionGivenUpError(StreamError):
    """Regions failed more often than their restart strategy or ``tolerable_failures`` allows; the
    number of failures and the last cause are in ``where``."""


class RegionsSuspendedError(StreamError):
    """A bounded job ended without its suspended regions; the regions, their causes, and the offsets
    from which nothing was written are in ``where``."""


class RestartCommandedError(FencedError):
    """An operator restarts a region: its attempt ends, and this is no failure."""


class CheckpointFailedError(StreamError):
    """More checkpoints failed or expired in a row than the job tolerates."""
