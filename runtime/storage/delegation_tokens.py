"""Delegation tokens of HDFS: values, and how tasks without a JVM get new ones.

A token lets its bearer act as its owner until it expires. Only the driver has the keytab or ticket
and obtains tokens. Tasks get one with their plan; a task that runs longer fetches the next one from
the driver.
"""

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.runtime.errors import StorageUnreachableError, StreamError

__all__ = [
    "DelegationToken",
    "DriverTokens",
    "FetchToken",
    "IssuedToken",
    "TaskTokens",
    "TokenSource",
    "expired_token",
    "fetching_tokens",
    "issued_token",
    "without_tokens",
]

log = logging.getLogger(__name__)

_DUE = 0.75  # of the life, as for Spark's own tokens
_FETCH_EVERY_S = 5.0
_RETRY_S = 5.0
_IN_QUERY = re.compile(r"(delegation=)[^&\s'\"]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token of one HDFS.

    Attributes:
        text: as Hadoop encodes it for URLs; never logged, never in ``repr``.
        obtained_ms: when, by the driver's clock; milliseconds since 1970.
        expires_ms: when it ends, by the NameNode's clock.
    """

    text: str = field(repr=False)
    obtained_ms: int
    expires_ms: int

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for the next one."""
        return now_ms - self.obtained_ms >= _DUE * (self.expires_ms - self.obtained_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """What the driver has for its tasks.

    Attributes:
        token: the newest one.
        problem: why there is no newer one, although it is due; empty: there is no problem.
    """

    token: DelegationToken = field(repr=False)
    problem: str = ""


class TokenSource(Protocol):
    """The newest token of one HDFS. Driver or task, any thread. Picklable: to `TaskTokens`."""

    def current(self) -> DelegationToken:
        """The newest token; may have expired if there is no newer one."""
        ...

    def after(self, refused: DelegationToken) -> DelegationToken:
        """A newer token than the one that the NameNode refused.

        Raises:
            StorageUnreachableError: there is none yet.
        """
        ...


FetchToken = Callable[[str], IssuedToken]
"""Fetches the newest token of that name from the driver; raises StreamError. Picklable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTokens(TokenSource):
    """`TokenSource` in a task. Picklable.

    Attributes:
        name: of the token in the driver; unique over drivers.
        issued: when the plan was made.
        fetch: how to get a newer one; None: the task is short, and the next one gets another.
    """

    name: str
    issued: IssuedToken
    fetch: FetchToken | None = None

    def current(self) -> DelegationToken:
        """See `TokenSource`; fetches a newer one when it is due."""
        newest = _kept.newest(self.name, self.issued).token
        if newest.is_due(_now_ms()):
            newest = self._fetched().token
        return newest

    def after(self, refused: DelegationToken) -> DelegationToken:
        found = _kept.newest(self.name, self.issued)
        if found.token == refused:
            found = self._fetched()
        if found.token == refused:
            raise expired_token(found.problem)
        return found.token

    def _fetched(self) -> IssuedToken:
        """The newest one after a question to the driver, at most one every few seconds."""
        if self.fetch is not None and _kept.may_fetch(self.name):
            try:
                return _kept.newest(self.name, self.fetch(self.name))
            except StreamError as err:  # the present one may still be good
                log.info("no newer delegation token was fetched: error=%s", err)
        return _kept.newest(self.name, self.issued)


class _KeptTokens:
    """The newest tokens that this process knows, for all of its tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._issued: dict[str, IssuedToken] = {}
        self._fetched_s: dict[str, float] = {}

    def newest(self, name: str, other: IssuedToken) -> IssuedToken:
        with self._lock:
            known = self._issued.get(name)
            if known is None or known.token.obtained_ms <= other.token.obtained_ms:
                self._issued[name] = other
            return self._issued[name]

    def may_fetch(self, name: str) -> bool:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._fetched_s.get(name, -_FETCH_EVERY_S) < _FETCH_EVERY_S:
                return False
            self._fetched_s[name] = now_s
            return True


_kept = _KeptTokens()


class DriverTokens(TokenSource):
    """`TokenSource` in the driver; obtains the next token in a thread when it is due.

    Any thread. In a plan it becomes the task's `TaskTokens`.

    Args:
        obtain: gives a new token; raises StreamError.
        clock_ms: milliseconds since 1970.
    """

    def __init__(
        self,
        obtain: Callable[[], DelegationToken],
        *,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self.name = uuid.uuid4().hex
        self._obtain = obtain
        self._clock_ms = clock_ms or _now_ms
        self._lock = threading.Lock()
        self._issued = IssuedToken(token=obtain())
        self._thread: threading.Thread | None = None
        self._tried_s = time.monotonic()
        _issuers[self.name] = self

    def current(self) -> DelegationToken:
        return self.issued().token

    def after(self, refused: DelegationToken) -> DelegationToken:
        self._renew()
        found = self._issued
        if found.token == refused:
            raise expired_token(found.problem)
        return found.token

    def issued(self) -> IssuedToken:
        """The newest token at once; if it is due, a thread obtains the next one. Waits for that one
        if this one has expired."""
        found, now_ms = self._issued, self._clock_ms()
        if found.token.is_due(now_ms):
            thread = self._renewing()
            if thread is not None and now_ms >= found.token.expires_ms:
                thread.join()
        return self._issued

    def for_tasks(self, fetch: FetchToken | None = None) -> TaskTokens:
        """For a plan."""
        return TaskTokens(name=self.name, issued=self.issued(), fetch=fetch)

    def __reduce__(self) -> tuple[Any, ...]:
        return _task_tokens, (self.for_tasks(_fetch.get()),)

    def _renewing(self) -> threading.Thread | None:
        """The thread that obtains the next token; None: the last try was just now."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            if time.monotonic() - self._tried_s < _RETRY_S and self._issued.problem:
                return None
            self._thread = threading.Thread(target=self._renew, name="sluice-tokens", daemon=True)
            self._thread.start()
            return self._thread

    def _renew(self) -> None:
        self._tried_s = time.monotonic()
        try:
            self._issued = IssuedToken(token=self._obtain())
            log.info("delegation token obtained: expires_ms=%d", self._issued.token.expires_ms)
        except StreamError as err:
            self._issued = IssuedToken(token=self._issued.token, problem=str(err))
            log.warning("no new delegation token: error=%s", err)


_issuers: dict[str, DriverTokens] = {}


def issued_token(name: str) -> IssuedToken | None:
    """The newest token of that name; None: this process has none. Driver."""
    found = _issuers.get(name)
    return None if found is None else found.issued()


_fetch: ContextVar[FetchToken | None] = ContextVar("fetch", default=None)


@contextlib.contextmanager
def fetching_tokens(fetch: FetchToken) -> Iterator[None]:
    """Tokens that are pickled in this block, in a plan, let their tasks fetch newer ones so."""
    before = _fetch.set(fetch)
    try:
        yield
    finally:
        _fetch.reset(before)


def _task_tokens(found: TaskTokens) -> TaskTokens:
    return found


def expired_token(problem: str) -> StorageUnreachableError:
    """The error of a client whose token has expired before the driver obtained another one."""
    return StorageUnreachableError(
        "the delegation token of HDFS has expired",
        {"problem": problem or "the driver has obtained no newer one yet"},
        "Check that the KDC answers, and the driver's keytab or ticket: its log has the cause. No "
        "record is lost or doubled.",
    )


def without_tokens(text: object) -> str:
    """A text, such as an error with a URL, without the tokens in it."""
    return _IN_QUERY.sub(r"\1***", str(text))


def _now_ms() -> int:
    return int(time.time() * 1000)


class _WithoutTokens(logging.Filter):
    """urllib3 logs each request with its URL at level DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                without_tokens(each) if isinstance(each, str) else each for each in record.args
            )
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_WithoutTokens())
