"""Errors of pyiceberg and the libraries below it, as typed errors."""

import contextlib
import functools
from collections.abc import Iterator, Mapping

import pyarrow as pa

from sluice.runtime.errors import (
    AuthenticationError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)

__all__ = ["as_typed", "client_errors", "client_errors_translated"]


@functools.cache
def client_errors() -> tuple[type[Exception], ...]:
    """Catalogs and stores raise these when a request failed. It may have happened all the same.

    A ValueError is an answer that pyiceberg could not read, or a change that it could not apply.
    """
    from pyiceberg.exceptions import CommitFailedException, OAuthError, RESTError

    found: list[type[Exception]] = [
        OSError,  # also of requests
        pa.ArrowException,
        RESTError,
        OAuthError,
        CommitFailedException,
        ValueError,
    ]
    with contextlib.suppress(ImportError):
        from sqlalchemy.exc import SQLAlchemyError

        found.append(SQLAlchemyError)
    return tuple(found)


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
