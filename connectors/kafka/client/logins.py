"""Whether a client's log-in is refused, or has been for a moment; and why brokers are away."""

import re
import time
from collections.abc import Mapping

from sluice.connectors.kafka.client.confluent import KafkaError, error_codes, translate
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError

__all__ = ["LASTING_S", "Refusals"]

LASTING_S = 15.0
"""Longer than it takes librdkafka to ask again for a token that it was not given: 10 s."""

_BROKER_AWAY = error_codes("_RESOLVE", "_TRANSPORT")
_SINCE = re.compile(r" \(after \d+ms in state .*\)$")


class Refusals:
    """What a client has told of refused log-ins, since they were last forgotten.

    Driver or executor; kept by whoever polls the client. A refusal shows nowhere else, all calls
    run out of time; it is told once, and nothing tells that the next log-in went well. Yet it may
    mean little: a token is renewed while the old one is valid, and a broker that has just started
    may not know its users.

    Args:
        where: names of servers, for people.
        clock: monotonic seconds.

    Attributes:
        last: of those refusals; None: there is none.
        unreached: how the client said last that a broker cannot be reached, for people; None: it
            did not.
        has_answered: a broker, at any time.
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
        """One more."""
        self._newest_s = self._clock()
        if self.last is None:
            self._first_s = self._newest_s
        self.last = refusal

    def answered(self) -> None:
        """A broker has, and it is the one that was needed."""
        self.reached()
        self.forget()

    def reached(self) -> None:
        """Some broker takes the credentials: they are right, though another one may refuse them."""
        self.has_answered = True

    def forget(self) -> None:
        """What was told is of the past."""
        self.last = self.unreached = None

    def lasting(self) -> AuthenticationError | None:
        """The last one, if tries were repeated for long enough since the first. Of a client that
        was answered before only if it has been refused again: nobody may be there to ask."""
        until_s = self._newest_s if self.has_answered else self._clock()
        return self.last if until_s - self._first_s >= LASTING_S else None
