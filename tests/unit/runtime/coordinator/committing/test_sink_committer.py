"""A sink as the coordinator uses it: each call reaches the connector, and tasks commit first."""

from collections.abc import Mapping

from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.contracts import Committer, SinkContext, SweepReport, SweepView
from sluice.runtime.coordinator.committing.sink_committer import SerialSink

CONTEXT = SinkContext(
    job_uid="j",
    job_name="job",
    operator_id="o",
    checkpoint_uri="file:/a",
    leader_session_id="s",
)
VIEW = SweepView(job_uid="j", attempt_ids={"main": 2}, protected=(), orphans=())
SWEPT = SweepReport(aborted=3, is_complete=False)


class _Sink:
    """A `SinkCoordinator` that writes down what it is asked for."""

    committer: Committer

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.facts = {"transaction_timeout_s": "100"}

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        self.asked.append(("check", timeout_s))
        return self.facts

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        self.asked.append(("claim", context, timeout_s))

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        self.asked.append(("sweep", view, timeout_s))
        return SWEPT

    def renew(self) -> None:
        self.asked.append(("renew",))

    def close(self) -> None:
        self.asked.append(("close",))


def test_lease_guards_outputs_a_continuous_sink_claims_renews_and_sweeps_as_its_connector_does() -> (
    None
):
    """A record that nobody renews is another job's after 15 s, and what nobody sweeps stops
    readers."""
    sink, lost_timeout = _Sink(), LostTimeout(None)
    continuous = SerialSink(sink, TasksFirst(NativeCommits(), lost_timeout))
    assert continuous.check(timeout_s=1.0) == {"transaction_timeout_s": "100"}
    continuous.claim(CONTEXT, timeout_s=2.0)
    assert continuous.sweep(VIEW, timeout_s=3.0) == SWEPT
    continuous.renew()
    continuous.close()
    assert sink.asked == [
        ("check", 1.0),
        ("claim", CONTEXT, 2.0),
        ("sweep", VIEW, 3.0),
        ("renew",),
        ("close",),
    ]
    assert lost_timeout.seconds < 50.0


def test_a_sink_without_transactions_bounds_nothing() -> None:
    """Its check tells of no time-out: nothing of it is open that could grow too old."""
    sink, lost_timeout = _Sink(), LostTimeout(None)
    sink.facts = {"cluster_id": "c"}
    tasks = TasksFirst(NativeCommits(), lost_timeout, between_barriers_s=1e6)
    continuous = SerialSink(sink, tasks)
    assert continuous.check(timeout_s=1.0) == {"cluster_id": "c"}
    assert lost_timeout.seconds == 60.0
