"""What a cluster accepts: by those brokers that answer, whoever is away."""

import threading
from collections.abc import Sequence

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.login_refusals import LASTING_S
from sluice.connectors.kafka.sink.producers.cluster_limits import (
    ClusterLimits,
    KnownLimits,
    LimitsAnswer,
    fetch_limits,
)
from sluice.connectors.kafka.sink.producers.producer_errors import UnsentError
from sluice.connectors.kafka.sink.writer.producer_wait import ProducerWait
from sluice.runtime.errors import AuthenticationError
from tests.kit.fakes import ManualClock
from tests.kit.kafka.fake_producer import FakeCluster
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.waiting import PATIENCE_S, join, wait_for
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import SCOPE, Registry

REFUSAL = AuthenticationError("refused", {}, "Check it.")
SILENCE = LimitsAnswer(unanswered=frozenset({"cluster"}))
REFUSED = LimitsAnswer(unanswered=frozenset({"cluster"}), refusal=REFUSAL)
ONE = LimitsAnswer(
    timeouts_s={"1": 900.0}, batch_bytes={"out": 5}, unanswered=frozenset({"broker 2"})
)
OTHER = LimitsAnswer(
    timeouts_s={"2": 60.0}, batch_bytes={"out": 5}, unanswered=frozenset({"broker 1"})
)
BOTH = LimitsAnswer(timeouts_s={"1": 900.0, "2": 60.0}, batch_bytes={"out": 5}, partitions=4)


class Looks:
    """Answers in turn, the last one for ever; each look takes a second, or as long as is said."""

    def __init__(self, *answers: LimitsAnswer, look_s: float = 1.0) -> None:
        self.look_s = look_s
        self.answers = list(answers)
        self.clock = ManualClock()
        self.at_s: list[float] = []
        self.known = KnownLimits(self._look, clock=self.clock)

    def _look(self) -> LimitsAnswer:
        self.at_s.append(self.clock())
        self.clock.advance(self.look_s)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def waited(self) -> ClusterLimits:
        """What a task gets that waits for a producer."""
        wait = ProducerWait(
            Registry(FakeCluster()),
            SCOPE.batch,
            "a producer",
            clock=self.clock,
            sleep=self.clock.advance,
        )
        return wait.until_ready(lambda _: self.known(), timeout_s=60.0)


def test_the_limits_are_the_least_of_what_brokers_and_topics_say() -> None:
    """What may not be read says nothing; and where none may be, nothing is known."""
    found = LimitsAnswer(
        timeouts_s={"1": 900.0, "2": 60.0, "3": None}, batch_bytes={"a": 7, "b": None}, partitions=3
    )
    assert found.limits == ClusterLimits(transaction_timeout_s=60.0, batch_bytes=7, partitions=3)
    assert LimitsAnswer(timeouts_s={"1": None}).limits == ClusterLimits()


def test_a_later_look_forgets_nothing_that_it_did_not_see() -> None:
    """Of the broker that has gone away meanwhile, the limit stays."""
    assert OTHER.after(ONE).limits.transaction_timeout_s == 60.0
    assert ONE.after(OTHER).limits.transaction_timeout_s == 60.0
    assert SILENCE.after(BOTH).limits == BOTH.limits
    assert SILENCE.after(BOTH).is_partial
    uncounted = LimitsAnswer(timeouts_s={"1": 8.0}, unanswered=frozenset({"partitions"}))
    assert uncounted.after(BOTH).limits == ClusterLimits(
        transaction_timeout_s=8.0, batch_bytes=5, partitions=4
    )


def test_a_broker_that_does_not_answer_holds_up_no_producer() -> None:
    """What the others say is used, and one look each half minute asks again, until all have."""
    looks = Looks(ONE, SILENCE, OTHER, BOTH)
    assert looks.known() == ONE.limits
    for _ in range(100):
        looks.known()
        looks.clock.advance(1.0)
    assert looks.known() == BOTH.limits
    assert len(looks.at_s) == 4, "then nobody is asked any more"
    assert all(b - a >= 30 for a, b in zip(looks.at_s, looks.at_s[1:], strict=False))


def test_while_one_asks_again_the_others_use_what_is_known() -> None:
    """A look at a broker that hangs takes seconds, and nobody needs its answer."""
    looking, answered = threading.Event(), threading.Event()
    answers: list[LimitsAnswer] = [ONE, BOTH]
    clock = ManualClock()

    def look() -> LimitsAnswer:
        if len(answers) == 1:
            looking.set()
            assert answered.wait(PATIENCE_S)
        return answers.pop(0)

    known = KnownLimits(look, clock=clock)
    known()
    clock.advance(60)
    found: list[ClusterLimits] = []
    slow = threading.Thread(target=lambda: found.append(known()))
    slow.start()
    assert looking.wait(PATIENCE_S)
    assert known() == ONE.limits
    answered.set()
    join(slow)
    assert found == [BOTH.limits]


def test_no_producer_is_made_while_nobody_has_told_what_the_cluster_accepts() -> None:
    """It would ask for 15 minutes, and for batches of 1 MB: where either is refused the job would
    end for good, for a broker that was slow once."""
    assert Looks(SILENCE, SILENCE, BOTH).waited() == BOTH.limits
    topic_open = LimitsAnswer(timeouts_s={"1": 9.0}, unanswered=frozenset({"topic out"}))
    for answer in (SILENCE, topic_open):
        with pytest.raises(UnsentError, match="does not report its limits"):
            Looks(answer).known()
    may_not_be_read = LimitsAnswer(timeouts_s={"1": None}, batch_bytes={"out": None})
    assert Looks(may_not_be_read).known() == ClusterLimits()


def test_a_refused_log_in_counts_when_it_lasts_and_no_broker_answers() -> None:
    """A broker that has just started may not know its users; and one of many is no cluster."""
    looks = Looks(REFUSED)
    with pytest.raises(UnsentError, match="log_in_refused"):
        looks.known()
    with pytest.raises(AuthenticationError):
        looks.waited()
    assert looks.at_s[-1] - looks.at_s[0] >= LASTING_S
    with pytest.raises(AuthenticationError):
        Looks(REFUSED, look_s=40.0).waited()  # as of a token function that takes its time
    assert Looks(*[REFUSED] * 5, BOTH).waited() == BOTH.limits
    one_refuses = LimitsAnswer(
        timeouts_s={"1": 900.0}, unanswered=frozenset({"broker 2"}), refusal=REFUSAL
    )
    assert Looks(one_refuses).known() == one_refuses.limits


def test_a_log_in_that_was_refused_once_is_not_refused_while_nobody_answers() -> None:
    """Each look has a client of its own, which would hear it again."""
    for refused in (1, 5):
        with pytest.raises(UnsentError):
            Looks(*[REFUSED] * refused, SILENCE).waited()


def test_a_log_in_that_was_refused_to_an_earlier_task_is_of_the_past() -> None:
    """Nobody has asked since: that it is refused again need not last, either."""
    looks = Looks(REFUSED)
    for _ in range(2):
        with pytest.raises(UnsentError):
            looks.known()
        looks.clock.advance(3600.0)


def look(cluster: MockCluster, topics: Sequence[str] = (), *, timeout_s: float) -> LimitsAnswer:
    connection = KafkaConnection(bootstrap_servers=cluster.bootstrap)
    return fetch_limits(connection, topics, timeout_s=timeout_s)


def test_each_broker_is_asked_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka refuses several in one call, by an error that looked like a refusal: of a cluster
    of three nobody knew for how long a transaction may live."""
    with MockCluster.running(brokers=3) as cluster, caplog.at_level("INFO"):
        found = look(cluster, timeout_s=PATIENCE_S)
    assert found == LimitsAnswer(timeouts_s=dict.fromkeys("123"))
    assert "a configuration cannot be read" in caplog.text, "this cluster has none"
    assert "Only one" not in caplog.text


def test_a_broker_that_hangs_hides_none_of_the_others() -> None:
    with MockCluster.running(brokers=3) as cluster:
        cluster.hang(2)

        def others() -> LimitsAnswer | None:
            """On a machine that stands still they may be late, too."""
            found = look(cluster, timeout_s=2.0)
            return found if found.unanswered == {"broker 2"} else None

        found = wait_for(others, what="answers of the others", poll_s=0)
    assert found is not None
    assert found.timeouts_s.keys() == {"1", "3"}
