"""What a cluster accepts, as far as its brokers have said so. Decides; asks nobody itself."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from connectors.kafka.log_ins import Refusals
from connectors.kafka.refusals import UnsentError
from runtime.contracts import Clock
from runtime.errors import AuthenticationError, StreamError

__all__ = ["ClusterLimits", "KnownLimits", "LimitsLook"]

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

    def after(self, known: "LimitsLook") -> "LimitsLook":
        """This look, and of what nobody has answered this time what was known before."""
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
        look: asks the cluster once; blocks for some seconds.
        clock: monotonic seconds.
    """

    def __init__(self, look: Callable[[], LimitsLook], *, clock: Clock = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._asking = threading.Lock()
        self._refusals = Refusals(clock=clock)
        self._known: LimitsLook | None = None
        self._next_look_s = 0.0

    def __call__(self) -> ClusterLimits:
        """What is known now, after one look at most.

        Raises:
            UnsentError: too little is told yet; who needs a producer asks again.
            AuthenticationError: no broker answers, and the log-in is refused for good.
            ConfigError: the client refuses a setting.
        """
        known = self._known
        if known is None:
            with self._asking:  # who comes second has the first one's answer
                return (self._known or self._first()).limits
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
            return (self._once_more(known) if known.is_partial else known).limits

    # --- below, the lock is held ------------------------------------------------------------

    def _first(self) -> LimitsLook:
        if self._clock() >= self._next_look_s:
            self._refusals.forget()  # of a task of the past: who waits asks more often
        try:
            found = self._look()
        finally:
            self._next_look_s = self._clock() + _INTERVAL_S
        if not found.is_enough:
            raise self._failure(found)
        self._known = found
        return found

    def _renewed(self, known: LimitsLook) -> LimitsLook:
        return known if self._clock() < self._next_look_s else self._once_more(known)

    def _once_more(self, known: LimitsLook) -> LimitsLook:
        # Before the look: one that takes long, or fails, is one all the same.
        self._next_look_s = self._clock() + _INTERVAL_S
        self._known = found = self._look().after(known)
        return found

    def _failure(self, found: LimitsLook) -> StreamError:
        if found.timeouts_s or found.refusal is None:
            # Some broker takes the credentials, or nobody has refused them: each look logs in anew.
            self._refusals.forget()
        else:
            self._refusals.add(found.refusal)
        refused = self._refusals.last
        return self._refusals.lasting() or UnsentError(
            "the cluster does not tell which transactions and batches it accepts",
            {"unanswered": ", ".join(sorted(found.unanswered))}
            | ({} if refused is None else {"log_in_refused": refused.args[0]}),
            "Check that its brokers run and can be reached from here.",
        )
