"""The newest OAUTHBEARER token of a process, reused while the issuer does not answer."""

import functools
import logging
import time
from collections.abc import Callable

from sluice.connectors.kafka.client.credentials import OAuthToken, TokenFunction
from sluice.connectors.kafka.client.retry import Deadline
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import StreamError, UnreachableError

__all__ = ["KeptToken", "kept_token"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LEAST_LEFT_S = 5.0  # a log-in takes a moment, and clocks differ
_MOST_KEPT = 32


class KeptToken:
    """Fetches a token for each request, and returns the last one while the issuer does not answer.

    Driver and executors, any thread. A client requests a token again after four fifths of the time
    until its expiry. So with an old token it requests more and more often.

    Args:
        fetch: requests a token from the issuer.
        clock: monotonic seconds, for waits.
        wall_clock: seconds since the Unix epoch, for expiry.
    """

    def __init__(
        self,
        fetch: TokenFunction,
        *,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._last: OAuthToken | None = None

    def get(self, *, retry_for_s: float = 0.0) -> OAuthToken:
        """Return a valid token.

        Args:
            retry_for_s: how long to retry if there is no earlier token.
        Raises:
            UnreachableError: the issuer does not answer, or has no token at the moment.
            AuthenticationError: it refuses for good.
            StreamError: the user's function raised it.
        """
        deadline, pause_s = Deadline(retry_for_s, self._clock), _FIRST_PAUSE_S
        while True:
            found = self._fetch_or_reuse()
            if isinstance(found, OAuthToken):
                return found
            if pause_s > deadline.left_s:
                raise found
            self._sleep(pause_s)
            pause_s *= 2

    def _fetch_or_reuse(self) -> OAuthToken | UnreachableError:
        try:
            self._last = self._fetch()
        except UnreachableError as err:
            failure = err
        except StreamError:
            raise
        except Exception as err:  # noqa: BLE001 - a user's function may meet anything
            failure = _unexpected(err)
        else:
            return self._last
        last = self._last
        left_s = 0.0 if last is None else last.expires_at_s - self._wall_clock()
        if last is None or left_s < _LEAST_LEFT_S:
            return failure
        log.warning("the last OAuth token is used: valid_s=%.0f error=%s", left_s, failure)
        return last


def _unexpected(error: Exception) -> UnreachableError:
    failure = UnreachableError(
        "the token function failed",
        {"cause": type(error).__name__},  # its text may hold secrets
        "Raise AuthenticationError for failures that a retry cannot fix; Sluice retries others.",
    )
    failure.__cause__ = error
    return failure


_of_process = functools.lru_cache(maxsize=_MOST_KEPT)(KeptToken)


def kept_token(fetch: TokenFunction) -> KeptToken:
    """Return the process's `KeptToken` for a function, so that a new client has the last token.

    Keeps the most recently used functions; each copy of a lambda counts as a new one.
    """
    try:
        return _of_process(fetch)
    except TypeError:  # not hashable
        return KeptToken(fetch)
