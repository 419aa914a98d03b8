"""What Hadoop's client says when it fails, by what is to be done about it.

The kind is told from the names of the exceptions, for the same failure comes as an exception of
its own, wrapped by the server (`RemoteException`), or as the cause of one of Spark's.
"""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.storage.file_system import NAME_TOO_LONG

__all__ = [
    "FailureKind",
    "JavaException",
    "causes_of",
    "exception_of",
    "exceptions_of",
    "failure_kind",
    "typed",
]

_CAUSES = 10  # at most so many causes of causes are looked at
_NO_HOST = "UnknownHostException"


class FailureKind(enum.Enum):
    """What keeps a file system from doing what it was asked."""

    DENIED = "denied"  # rights or tickets: a human
    UNSUPPORTED = "unsupported"  # the URI, a name, or Hadoop's configuration: a human
    FULL = "full"  # no disk has room, a quota is used up, or a directory is full: a human
    UNREACHABLE = "unreachable"  # down, starting, in safe mode, or not the active one: wait
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaException:
    """One exception of a chain of causes.

    Attributes:
        name: of its class, or of the server's that it stands for; without the package.
        text: its first line.
    """

    name: str
    text: str

    def __str__(self) -> str:
        return self.text


_NAMES: Mapping[FailureKind, frozenset[str]] = {
    FailureKind.DENIED: frozenset(
        {"AccessControlException", "AuthorizationException", "SaslException", "InvalidToken"}
    ),
    FailureKind.UNSUPPORTED: frozenset(
        {
            *("UnsupportedFileSystemException", "IllegalArgumentException"),
            "PathComponentTooLongException",
        }
    ),
    FailureKind.FULL: frozenset(
        {
            *("DSQuotaExceededException", "NSQuotaExceededException", "DiskOutOfSpaceException"),
            *("QuotaExceededException", "QuotaByStorageTypeExceededException"),
            "MaxDirectoryItemsExceededException",
        }
    ),
    FailureKind.UNREACHABLE: frozenset(
        {
            *("ConnectException", "ConnectTimeoutException", "NoRouteToHostException"),
            *("SocketTimeoutException", _NO_HOST, "PortUnreachableException"),
            *("SafeModeException", "StandbyException", "RetriableException"),
            *("ObserverRetryOnActiveException", "ServerNotRunningYetException"),
            *("NameNodeNotStartedException", "BlockMissingException"),
            "CannotObtainBlockLengthException",
        }
    ),
}
_TEXTS: Sequence[tuple[FailureKind, re.Pattern[str]]] = (
    # The first bytes of an answer in HTTP, taken for a length: it is the port of the web pages.
    (FailureKind.UNSUPPORTED, re.compile(r"RPC response .*exceeds maximum data length")),
    # The NameNode knows of DataNodes and has excluded none: it found room on none of them.
    (
        FailureKind.FULL,
        re.compile(
            r"No space left on device|Disk quota exceeded"
            r"|could only be written to .* [1-9]\d* datanode\(s\) running and (?:no|0) node"
        ),
    ),
    (
        FailureKind.UNREACHABLE,
        re.compile(
            r"could only be written to|All datanodes \[.*are bad|Connection reset|Broken pipe"
            r"|Unable to close file because the last block|between local host is"
            r"|Name ?[nN]ode (?:is )?still not started|Failed to replace a bad datanode"
            r"|Unable to create new block|ResponseProcessor .* [Cc]onnection"
            r"|failed on socket exception|Network is (?:unreachable|down)"  # this host's own
        ),
    ),
)


def failure_kind(chain: Sequence[JavaException]) -> FailureKind:
    """Of a chain of exceptions, the outermost first. Pure.

    What a human must look at wins over what may pass: a quota that is used up is not waited for
    because a connection was lost, too. But a host without an address is no wrong argument, as which
    Hadoop's client has it: the NameNode's name is gone from some networks while it is down.
    """
    if any(each.name == _NO_HOST or each.text.startswith(f"java.net.{_NO_HOST}") for each in chain):
        return FailureKind.UNREACHABLE
    for kind, names in _NAMES.items():
        if any(each.name in names for each in chain):
            return kind
        found = next((text for of, text in _TEXTS if of is kind), None)
        if found is not None and any(found.search(each.text) for each in chain):
            return kind
    return FailureKind.OTHER


def exceptions_of(error: BaseException) -> list[JavaException]:
    """The chain of a Java error as Python has it, the outermost first."""
    if isinstance(error, Py4JJavaError):
        return [exception_of(cause) for cause in causes_of(error.java_exception)]
    text = (str(error).splitlines() or [repr(error)])[0]
    return [JavaException(name=type(error).__name__, text=text)]


def causes_of(error: Any) -> Iterator[Any]:  # noqa: ANN401 - Java objects
    """A Java exception and its causes, the outermost first."""
    for _ in range(_CAUSES):
        if error is None:
            return
        yield error
        error = error.getCause()


def exception_of(error: Any) -> JavaException:  # noqa: ANN401 - a Java object
    """One Java exception; what a server threw stands under its own name."""
    name = str(error.getClass().getSimpleName())
    if name == "RemoteException":
        name = re.split(r"[.$]", str(error.getClassName()))[-1]
    return JavaException(name=name, text=(str(error.toString()).splitlines() or [name])[0])


def typed(kind: FailureKind, what: str, where: Mapping[str, object]) -> StreamError:
    """The error for people: ``what`` was tried, as "write in a directory of the job"."""
    if kind is FailureKind.DENIED:
        return AuthenticationError(
            f"may not {what}",
            where,
            "Give this user the right to read and write there, or a valid ticket.",
        )
    if kind is FailureKind.UNSUPPORTED:
        return ConfigError(
            f"cannot {what}",
            where,
            "Check the URI, whose port is the NameNode's own and not that of its web pages, and "
            f"Hadoop's configuration (HADOOP_CONF_DIR). Or: {NAME_TOO_LONG}",
        )
    if kind is FailureKind.FULL:
        return StorageError(
            f"there is no room to {what}",
            where,
            "Make room there, or raise the quota or limit, and start again; nothing is lost or "
            "doubled.",
        )
    if kind is FailureKind.UNREACHABLE:
        return StorageUnreachableError(
            f"could not {what}",
            where,
            "Check that NameNode and DataNodes are up, reachable and not in safe mode; of a host "
            "that is not known, the URI and HADOOP_CONF_DIR, too.",
        )
    return StorageError(
        f"could not {what}",
        where,
        "Check that the file system answers and may be written; its own log says more.",
    )
