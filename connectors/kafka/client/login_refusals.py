"""Refused log-ins of a client: for a moment or lasting; and why brokers cannot be reached."""

import re
import time
from collections.abc import Mapping

from sluice.connectors.kafka.client.confluent import KafkaError, error_codes, translate
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError

__all__ = ["LASTING_S", "LoginRefusals"]

LASTING_S = 15.0
"""A refusal that lasts this long is an error. librdkafka requests a missing token every 10 s."""

_BROKER_AWAY = error_codes("_RESOLVE", "_TRANSPORT")
_SINCE = re.compile(r" \(after \d+ms in state .*\)$")


class LoginRefusals:
    """Refused log-ins that a client has reported. Driver or executor; the thread that polls.

    A client reports a refusal once, by its error callback; calls then end by their timeout. It does
    not report that the next log-in succeeds. A single refusal may not matter: a token is renewed
    while the old one is valid, and a broker that has just started may not know its users.

    Args:
        where: names of servers, for errors.
        clock: monotonic seconds.

    Attributes:
        last: the last refusal; None: there is none.
        unreached: the client's last text about an unreachable broker; None: there is none.
        has_answered: whether any broker has accepted the credentials.
    """

    def __init__(
        self, where: Mapping[str, object] | None = None, *, clock: Clock = time.monotonic
    ) -> None:
        self._where = dict(where or {})
        self._clock = clock
        self._first_s = self._newest_s = 0.0
        self.last: AuthenticationError | None = None
        self.unreached: str | None = None
        self.has_answered = False

    def note(self, error: KafkaError) -> None:
        """The client's ``error_cb``."""
        if error.code() in _BROKER_AWAY:
            self.unreached = _SINCE.sub("", error.str())
        found = translate(error, self._where)
        if isinstance(found, AuthenticationError):
            self.add(found)

    def add(self, refusal: AuthenticationError) -> None:
        """Remember a refusal."""
        self._newest_s = self._clock()
        if self.last is None:
            self._first_s = self._newest_s
        self.last = refusal

    def answered(self) -> None:
        """Note the answer of the broker that a request needed: earlier refusals are over."""
        self.reached()
        self.forget()

    def reached(self) -> None:
        """Note that a broker accepts the credentials, though another one may refuse them."""
        self.has_answered = True

    def forget(self) -> None:
        """Forget earlier reports."""
        self.last = self.unreached = None

    def lasting(self) -> AuthenticationError | None:
        """Return the last refusal if refusals have lasted `LASTING_S`; else None.

        For a client that was answered before, the last refusal must be that late, too: there may
        have been no broker to answer since.
        """
        until_s = self._newest_s if self.has_answered else self._clock()
        return self.last if until_s - self._first_s >= LASTING_S else None
