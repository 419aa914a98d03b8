"""What a cluster accepts, as far as its brokers have said so. Decides; asks nobody itself."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from connectors.kafka.log_ins import Refusals
from connectors.kafka.refusals import UnsentError
from runtime.contracts import Clock
from runtime.errors import AuthenticationError

__all__ = ["ClusterLimits", "KnownLimits", "LimitsLook"]

_WITHIN_S = 9.0  # a broker that hangs is fenced by then, as Kafka is by itself
_PAUSE_S = 0.5
_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLimits:
    """What a cluster accepts; None where nobody has said, or may not be read.

    Attributes:
        transaction_timeout_s: the least ``transaction.max.timeout.ms`` of its brokers.
        batch_bytes: the least ``max.message.bytes`` of the sink's topics. A broker refuses a whole
            batch that is larger, and librdkafka, unlike Java's producer, does not split it and try
            again.
        partitions: of all topics that are written to.
    """

    transaction_timeout_s: float | None = None
    batch_bytes: int | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsLook:
    """What brokers have said when they were asked; None is an answer: it may not be read.

    Attributes:
        timeouts_s: ``transaction.max.timeout.ms`` by broker.
        batch_bytes: ``max.message.bytes`` by topic.
        partitions: of all topics together, counted among the rest; None: nobody can count them.
        unanswered: names of what was asked, and nobody has answered in time.
        refusal: a broker has refused the log-in, perhaps for the moment.
    """

    timeouts_s: Mapping[str, float | None] = field(default_factory=dict)
    batch_bytes: Mapping[str, int | None] = field(default_factory=dict)
    partitions: int | None = None
    unanswered: frozenset[str] = frozenset()
    refusal: AuthenticationError | None = None

    @property
    def is_enough(self) -> bool:
        """Whether a producer may be made: a broker has answered, and nothing is open of a topic.

        Brokers are alike in most clusters; but a batch that its topic does not take ends the job.
        """
        is_topic_open = any(name.startswith("topic ") for name in self.unanswered)
        return bool(self.timeouts_s) and not is_topic_open

    @property
    def is_partial(self) -> bool:
        """Whether asking again may tell more."""
        return bool(self.unanswered)

    @property
    def limits(self) -> ClusterLimits:
        """The least of each."""
        timeouts = [each for each in self.timeouts_s.values() if each is not None]
        sizes = [each for each in self.batch_bytes.values() if each is not None]
        return ClusterLimits(
            transaction_timeout_s=min(timeouts, default=None),
            batch_bytes=min(sizes, default=None),
            partitions=self.partitions,
        )

    def after(self, known: "LimitsLook | None") -> "LimitsLook":
        """This look, and of what nobody has answered this time what was known before."""
        if known is None:
            return self
        is_counted = "partitions" not in self.unanswered and bool(self.timeouts_s)
        return LimitsLook(
            timeouts_s={**known.timeouts_s, **self.timeouts_s},
            batch_bytes={**known.batch_bytes, **self.batch_bytes},
            partitions=self.partitions if is_counted else known.partitions,
            unanswered=self.unanswered,
            refusal=self.refusal,
        )


class KnownLimits:
    """Limits as far as the cluster has told them. Executor, any thread; one for each pool.

    No producer is made while too little is known: what it then asks for may be refused for good,
    which would end the job. A broker that is away, or that refuses the log-in, holds up nobody:
    what the others say is used, and asked for again with one look each half minute.

    Args:
        look: asks the cluster once, and never raises; blocks for some seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        look: Callable[[], LimitsLook],
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._look = look
        self._clock = clock
        self._sleep = sleep
        self._asking = threading.Lock()
        self._refusals = Refusals(clock=clock)
        self._known: LimitsLook | None = None
        self._next_look_s = 0.0

    def __call__(self) -> ClusterLimits:
        """What is known now.

        Raises:
            UnsentError: nobody has told enough in time.
            AuthenticationError: no broker answers, and the log-in is refused for good.
        """
        until_s = self._clock() + _WITHIN_S
        known = self._known
        if known is None:
            with self._asking:  # who comes second has the first one's answer
                return self._asked(until_s).limits
        if not known.is_partial or not self._asking.acquire(blocking=False):
            return known.limits
        try:
            return self._renewed(known).limits
        finally:
            self._asking.release()

    def asked_again(self) -> ClusterLimits:
        """Behind a refusal: what is known after one more look, at once, if some broker has not been
        heard. It may have come back meanwhile, and be the one that refuses."""
        with self._asking:
            known = self._known or LimitsLook()
            if not known.is_partial:
                return known.limits
            return self._keep(self._look().after(known), self._clock()).limits

    def _asked(self, until_s: float) -> LimitsLook:
        while self._known is None:
            began_s = self._clock()
            found = self._look()
            if found.is_enough:
                self._keep(found, began_s)
                return found
            self._require_hope(found, until_s)
            self._sleep(_PAUSE_S)  # a refusal may come at once
        return self._known

    def _renewed(self, known: LimitsLook) -> LimitsLook:
        now_s = self._clock()
        if now_s < self._next_look_s:
            return known
        # Before the look: one that takes long, or fails, is one all the same.
        self._next_look_s = now_s + _INTERVAL_S
        return self._keep(self._look().after(known), now_s)

    def _keep(self, found: LimitsLook, began_s: float) -> LimitsLook:
        self._next_look_s = began_s + _INTERVAL_S
        self._known = found
        return found

    def _require_hope(self, found: LimitsLook, until_s: float) -> None:
        if found.timeouts_s or found.refusal is None:
            # Some broker takes the credentials, or nobody has refused them: each look logs in anew.
            self._refusals.forget()
        else:
            self._refusals.add(found.refusal)
        if lasting := self._refusals.lasting():
            raise lasting
        if self._refusals.last is None and self._clock() >= until_s:
            raise UnsentError(
                "the cluster does not tell which transactions and batches it accepts",
                {"asked_s": _WITHIN_S, "unanswered": ", ".join(sorted(found.unanswered))},
                "Check that its brokers run and can be reached from here.",
            )
