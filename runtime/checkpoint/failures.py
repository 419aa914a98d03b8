"""Which errors of a region would come again, so that the job stops instead of trying again."""

from runtime.errors import (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    DataLostError,
    DeliveryError,
    IllegalTransitionError,
    LateRecordsError,
    PoisonRecordsError,
    SourceChangedError,
    TransactionLostError,
    TransactionUnknownError,
    UnsupportedFormatError,
    WrongJobError,
)

__all__ = ["PERMANENT_ERRORS"]

PERMANENT_ERRORS = (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    DataLostError,
    DeliveryError,
    IllegalTransitionError,
    LateRecordsError,
    PoisonRecordsError,
    SourceChangedError,
    TransactionLostError,
    TransactionUnknownError,
    UnsupportedFormatError,
    WrongJobError,
)
"""Everything else (a lost executor, a bug in user code, a slow broker) is worth another life of
the region, as often as the job tolerates."""
