"""Errors of pyiceberg and the libraries below it, as typed errors."""

import contextlib
import sys
from collections.abc import Iterator, Mapping

import pyarrow as pa

from sluice.runtime.errors import (
    AuthenticationError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)

__all__ = ["as_typed", "client_errors", "client_errors_translated", "request_errors"]


_OF_CLIENTS = {
    "sqlalchemy.exc": ("SQLAlchemyError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "thrift.Thrift": ("TException",),
}
"""Errors of the libraries below pyiceberg, by module. One that is not loaded has raised nothing."""


def request_errors() -> tuple[type[Exception], ...]:
    """Catalogs and stores raise these when a request failed. It may have happened all the same."""
    from pyiceberg import exceptions

    below = (
        getattr(sys.modules[module], name)
        for module, names in _OF_CLIENTS.items()
        if module in sys.modules
        for name in names
    )
    return (
        OSError,  # also of requests
        pa.ArrowException,
        exceptions.RESTError,
        exceptions.SignError,
        exceptions.DynamoDbError,
        exceptions.WaitingForLockException,
        *below,
    )


def client_errors() -> tuple[type[Exception], ...]:
    """`request_errors`, and those of pyiceberg itself.

    A ValueError is an answer that pyiceberg could not read, or a change that it could not apply.
    """
    from pyiceberg import exceptions

    own = (each for each in vars(exceptions).values() if isinstance(each, type))
    return (*request_errors(), *own, ValueError)


@contextlib.contextmanager
def client_errors_translated(action: str, where: Mapping[str, object]) -> Iterator[None]:
    """Raise a typed error instead of a client's.

    Raises:
        AuthenticationError: the catalog or store refused the credentials.
        StorageUnreachableError: it did not answer, or is overloaded.
        StorageError: any other failure.
    """
    try:
        yield
    except StreamError:
        raise
    except client_errors() as err:
        raise as_typed(err, action, where) from err


def as_typed(err: Exception, action: str, where: Mapping[str, object]) -> StreamError:
    """The typed error for one of `client_errors`."""
    where = {**where, "error": f"{type(err).__name__}: {err}"}
    from pyiceberg.exceptions import (
        AuthorizationExpiredError,
        ForbiddenError,
        OAuthError,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
        UnauthorizedError,
    )

    refused = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError)
    if isinstance(err, (*refused, PermissionError)):
        return AuthenticationError(
            f"Iceberg's catalog or store refused to {action}",
            where,
            "Check the credentials and the permissions of this user.",
        )
    away = (ServiceUnavailableError, ServerError, TooManyRequestsError, ConnectionError)
    if isinstance(err, (*away, TimeoutError, OSError)) or "Operational" in type(err).__name__:
        return StorageUnreachableError(
            f"Iceberg's catalog or store failed to {action}",
            where,
            "Check that both are up and reachable from this host.",
        )
    return StorageError(
        f"Iceberg's catalog or store failed to {action}",
        where,
        "See the error of the client; correct what it names.",
    )
