"""Tasks that commit and a driver that does, too, on the fake broker and on real ones: whoever comes
first, and whatever is lost in between, the records are visible once."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from sluice.connectors.kafka.client.confluent import KafkaException
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.continuous.task_messages import CommittedEpoch
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.model.splits import BatchKey
from tests.kit.harness_kinds import harness_of, kinds
from tests.kit.kafka.fake_kafka import Fenced
from tests.kit.kafka.transaction_harness import Attempt, Harness, begun, committable
from tests.kit.waiting import join


@pytest.fixture(params=kinds(extended={1}, older=True))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with harness_of(request) as made:
        yield made


def _commit_natively(attempt: Attempt) -> None:
    with contextlib.suppress(Fenced, KafkaException):
        attempt.end_natively(commit=True)


def _settled(harness: Harness, act: Callable[[Attempt, NativeCommits], None]) -> Attempt:
    """A task's epoch of three records, decided; ``act`` is what the task does when it is asked."""
    attempt = begun(harness, 3)
    entry, commits = committable(attempt.identity), NativeCommits()
    commits.begin("main", 1)
    commits.add_epoch(BatchKey(region="main", attempt_id=1, batch_id=0), (entry,))
    commits.wake_polls_with(lambda: act(attempt, commits))
    committer = TasksFirst(commits, LostTimeout(None), report_s=0.2)
    (report,) = committer.commit(
        KafkaCommitter(harness.wire), [entry], timeout_s=300, after_crash=False
    )
    assert report.outcome is CommitOutcome.COMMITTED
    assert KafkaCommitter(harness.wire).await_visible(timeout_s=300)
    return attempt


def test_outcome_from_broker_a_native_commit_whose_answer_is_lost_is_found(
    harness: Harness,
) -> None:
    """INVALID_TXN_STATE to a late EndTxn says nothing: the verdict reports that it is committed."""
    _settled(harness, lambda attempt, _: _commit_natively(attempt))
    assert harness.visible() == 3


def test_a_native_commit_that_is_acknowledged_counts(harness: Harness) -> None:
    def answered(attempt: Attempt, commits: NativeCommits) -> None:
        _commit_natively(attempt)
        commits.report("main", 1, [CommittedEpoch(batch_id=0, operators=("sink-1",))])

    _settled(harness, answered)
    assert harness.visible() == 3


def test_abort_by_endtxn_a_native_commit_after_the_drivers_changes_nothing(
    harness: Harness,
) -> None:
    """A task that was paused between the question and its commit; at level 0, where EndTxn does not
    fence, the broker says yes to it once more."""
    attempt = _settled(harness, lambda *_: None)
    _commit_natively(attempt)
    assert harness.visible() == 3


def test_a_native_commit_and_the_drivers_at_once_are_one(harness: Harness) -> None:
    threads: list[threading.Thread] = []

    def begin(attempt: Attempt, commits: NativeCommits) -> None:
        commits.end("main", 1)  # the driver does not wait for it
        threads.append(threading.Thread(target=_commit_natively, args=(attempt,)))
        threads[0].start()

    _settled(harness, begin)
    join(threads[0])
    assert harness.visible() == 3
