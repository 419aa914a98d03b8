"""Sorts failures of Hadoop's client by their remedy.

The names of the exceptions decide the kind. One failure may come as its own exception, wrapped by
the server (`RemoteException`), or as the cause of one of Spark's exceptions.
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
    "telling",
    "typed",
]

_CAUSES = 10  # longest chain of causes
_NO_HOST = "UnknownHostException"
_NO_KDC = re.compile(
    r"(?:Mechanism level|LoginException): [^(]*"
    r"(?:Connection refused|[Tt]imed out|No route to host|Network is unreachable|Unreachable)"
    r"|Cannot contact any KDC"
)
_KEYTAB = "Check spark.kerberos.principal and spark.kerberos.keytab: klist -k -t shows its entries."
_LOGINS: Sequence[tuple[re.Pattern[str], str]] = (
    (
        re.compile(r"Failed to find any Kerberos tgt|[Tt]icket expired|Ticket has expired"),
        "Run kinit, or set spark.kerberos.principal and spark.kerberos.keytab, which get new "
        "tickets for as long as the job runs.",
    ),
    (
        re.compile(
            r"Unable to obtain password from user|Client not found|Checksum failed"
            r"|[Pp]re-?authentication (?:information )?(?:was invalid|failed)|Integrity check"
        ),
        _KEYTAB,
    ),
    (re.compile(r"Clock skew"), "Set the clocks of this machine and of the KDC alike."),
    (
        re.compile(r"Server not found|Server has invalid Kerberos principal"),
        "Check dfs.namenode.kerberos.principal, and that the KDC knows this principal.",
    ),
    (
        re.compile(r"Cannot locate (?:KDC|default realm)|Can't get Kerberos realm"),
        "Check krb5.conf: Java reads it from java.security.krb5.conf, else from /etc/krb5.conf.",
    ),
    (
        re.compile(r"SIMPLE authentication is not enabled|Client cannot authenticate via"),
        "Run kinit, or set spark.kerberos.principal and spark.kerberos.keytab; and set "
        "HADOOP_CONF_DIR to the cluster's configuration, with "
        "hadoop.security.authentication=kerberos.",
    ),
    (re.compile(r"GSS initiate failed|KerberosAuthException|LoginException"), _KEYTAB),
)


class FailureKind(enum.Enum):
    """The kind of a file system's failure."""

    LOGIN = "login"  # Kerberos: a human
    DENIED = "denied"  # rights: a human
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
        {"AccessControlException", "AuthorizationException", "SaslException"}
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
            "InvalidToken",  # expired; Spark or the driver obtains another one from the KDC
        }
    ),
}
_TEXTS: Sequence[tuple[FailureKind, re.Pattern[str]]] = (
    # Hadoop took the first bytes of an HTTP answer for a length: the port is that of the web pages.
    (FailureKind.UNSUPPORTED, re.compile(r"RPC response .*exceeds maximum data length")),
    # The NameNode has DataNodes and excluded none of them: none has room.
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
    """The kind of a failure, from its chain of exceptions, outermost first. Pure.

    A failure that needs a human wins over one that may pass: after a used-up quota and a lost
    connection, waiting does not help. An unknown host is unreachable, although Hadoop's client
    calls it an illegal argument: some networks drop the NameNode's name while it is down.
    """
    if any(each.name == _NO_HOST or each.text.startswith(f"java.net.{_NO_HOST}") for each in chain):
        return FailureKind.UNREACHABLE
    if any(_NO_KDC.search(each.text) for each in chain):
        return FailureKind.UNREACHABLE
    if any(_login_remedy(each.text) for each in chain):
        return FailureKind.LOGIN
    for kind, names in _NAMES.items():
        if any(each.name in names for each in chain):
            return kind
        found = next((text for of, text in _TEXTS if of is kind), None)
        if found is not None and any(found.search(each.text) for each in chain):
            return kind
    return FailureKind.OTHER


def telling(chain: Sequence[JavaException]) -> JavaException:
    """The exception that says most: Kerberos' own, which Hadoop wraps, else the outermost."""
    found = (each for each in chain if _NO_KDC.search(each.text) or _login_remedy(each.text))
    return next(found, chain[0])


def _login_remedy(text: object) -> str | None:
    return next((remedy for found, remedy in _LOGINS if found.search(str(text))), None)


def exceptions_of(error: BaseException) -> list[JavaException]:
    """The chain of a Java error that Python caught, outermost first."""
    if isinstance(error, Py4JJavaError):
        return [exception_of(cause) for cause in causes_of(error.java_exception)]
    text = (str(error).splitlines() or [repr(error)])[0]
    return [JavaException(name=type(error).__name__, text=text)]


def causes_of(error: Any) -> Iterator[Any]:  # noqa: ANN401 - Java objects
    """A Java exception and its causes, outermost first."""
    for _ in range(_CAUSES):
        if error is None:
            return
        yield error
        error = error.getCause()


def exception_of(error: Any) -> JavaException:  # noqa: ANN401 - a Java object
    """One Java exception; a server's exception gets its own name."""
    name = str(error.getClass().getSimpleName())
    if name == "RemoteException":
        name = re.split(r"[.$]", str(error.getClassName()))[-1]
    return JavaException(name=name, text=(str(error.toString()).splitlines() or [name])[0])


def typed(kind: FailureKind, what: str, where: Mapping[str, object]) -> StreamError:
    """The typed error for a failed action ``what``, such as "write in a directory of the job"."""
    if kind is FailureKind.LOGIN:
        remedy = _login_remedy(where.get("error")) or _KEYTAB
        return AuthenticationError(f"no Kerberos login to {what}", where, remedy)
    if kind is FailureKind.DENIED:
        return AuthenticationError(
            f"may not {what}", where, "Give this user the right to read and write there."
        )
    if kind is FailureKind.UNSUPPORTED:
        return ConfigError(
            f"cannot {what}",
            where,
            "Check the URI, which needs the NameNode's RPC port, not that of its web pages, and "
            f"Hadoop's configuration (HADOOP_CONF_DIR). Or: {NAME_TOO_LONG}",
        )
    if kind is FailureKind.FULL:
        return StorageError(
            f"there is no room to {what}",
            where,
            "Make room there, or raise the quota or limit, and start again. No record is lost or "
            "doubled.",
        )
    if kind is FailureKind.UNREACHABLE:
        return StorageUnreachableError(
            f"could not {what}",
            where,
            "Check that NameNode and DataNodes are up, reachable and not in safe mode, and with "
            "Kerberos that the KDC answers. If the host is unknown, check the URI and "
            "HADOOP_CONF_DIR.",
        )
    return StorageError(
        f"could not {what}",
        where,
        "Check that the file system answers and may be written, and read its log.",
    )
