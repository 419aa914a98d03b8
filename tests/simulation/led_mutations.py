"""One rule about tasks that outlive their leader broken at a time; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.continuous.barrier_service import AttemptEpochs
from sluice.runtime.contracts import SweepView
from sluice.runtime.coordinator.core import acknowledgements
from sluice.runtime.coordinator.shell.attempt_listing import AttemptListing
from sluice.runtime.coordinator.start import recovery, settlement, takeover
from sluice.runtime.coordinator.start.startup import StartSequence
from sluice.runtime.failover import reconciling
from tests.simulation.led import Relay


def resume_ended_attempts(patch: pytest.MonkeyPatch) -> None:
    """An attempt that an earlier leader has ended may have lost its transactions."""
    reconciled = reconciling.reconciled

    def broken(reports: Any, decided: Any, **facts: Any) -> Any:
        reports = list(reports)
        facts["listed"] = {report.region: report.attempt_id for report in reports}
        return reconciled(reports, decided, **facts)

    patch.setattr(takeover, "reconciled", broken)


def abort_before_the_list(patch: pytest.MonkeyPatch) -> None:
    """An attempt leaves the list before its work is aborted, and not after."""
    patch.setattr(AttemptListing, "update", lambda self, require_newest: None)


def list_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A leader that has written the list looks for a later one before it aborts."""
    update = AttemptListing.update

    def broken(self: Any, require_newest: Callable[[], None]) -> None:
        del require_newest
        update(self, lambda: None)

    patch.setattr(AttemptListing, "update", broken)


def keep_the_list_of_the_last_leader(patch: pytest.MonkeyPatch) -> None:
    """A leader that does not resume an attempt says so before it aborts its work."""
    write = ResumableAttempts.write

    def broken(self: Any, listed: ListedAttempts) -> None:
        before = self.before(listed.run_attempt_id)
        write(self, replace(listed, attempts=before.attempts or listed.attempts))

    patch.setattr(ResumableAttempts, "write", broken)


def sweep_resumed_attempts(patch: pytest.MonkeyPatch) -> None:
    """The sweep of a start leaves the work of attempts that continue alone."""

    def view(*, attempt_ids: Mapping[str, int], **facts: Any) -> SweepView:
        newest = max(attempt_ids.values(), default=0)
        return SweepView(attempt_ids=dict.fromkeys(attempt_ids, newest + 1), **facts)

    patch.setattr(settlement, "SweepView", view)


def forget_reported_epochs(patch: pytest.MonkeyPatch) -> None:
    """An epoch that a task has been told is acknowledged is acknowledged to the next leader."""
    report = Relay.report

    def broken(self: Any, *, is_running: bool) -> Any:
        return replace(report(self, is_running=is_running), epochs=())

    patch.setattr(Relay, "report", broken)


def acknowledge_decided_epochs(patch: pytest.MonkeyPatch) -> None:
    """An epoch that the last decision contains is not acknowledged to the next leader."""
    patch.setattr(AttemptEpochs, "is_decided", lambda self, batch: False)
    patch.setattr(
        "sluice.runtime.coordinator.region.region_state.RegionState.is_decided",
        lambda self, batch: False,
    )


def take_splits_of_an_earlier_leader(patch: pytest.MonkeyPatch) -> None:
    """An epoch has no split that its leader has not found itself."""
    patch.setattr(acknowledgements, "_require_known_splits", lambda region, ack: None)


def resume_after_a_return(patch: pytest.MonkeyPatch) -> None:
    """A start that goes back resumes no attempt, nor does the next one."""
    patch.setattr(ListedAttempts, "follow", lambda self, checkpoint_id, decided: True)


def resume_after_two_returns(patch: pytest.MonkeyPatch) -> None:
    """Attempts of a leader that went back do not follow a later leader that went elsewhere."""

    def broken(record: Any, history: Any, *_: Any, **__: Any) -> bool:
        resume_id = record.checkpoint_id
        is_next = resume_id == recovery.resume_point(history, restore_from=None)
        return is_next and not recovery.superseded_by_restore(history, resume_id)

    patch.setattr(recovery, "may_resume", broken)


def go_back_at_each_start(patch: pytest.MonkeyPatch) -> None:
    """Each leader repeats the request of the job: only the first one goes back."""
    patch.setattr(recovery, "is_already_restored", lambda history, *, restore_from: False)


def resume_beyond_a_rewind(patch: pytest.MonkeyPatch) -> None:
    """A run that leaves out rows in flight resumes no attempt: it would leave out its rows, too."""

    def broken(record: Any, history: Any, *_: Any, listed: Any, attempt_id: int) -> bool:
        del attempt_id
        decided = [slot.checkpoint_id for slot in history.slots if slot.is_decided]
        return bool(listed.follow(record.checkpoint_id, decided))

    patch.setattr(recovery, "may_resume", broken)


def repair_beside_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: an attempt ends before lost work of its region is written again."""
    patch.setattr(StartSequence, "_end_before_repair", lambda self, region, attempt_id: None)


def resume_without_moved_state(patch: pytest.MonkeyPatch) -> None:
    """An attempt resumes only with the keyed state of exactly its splits."""
    reconciled = reconciling.reconciled

    def broken(reports: Any, decided: Any, **facts: Any) -> Any:
        return reconciled(reports, decided, **{**facts, "keyed": ()})

    patch.setattr(takeover, "reconciled", broken)


_LED: Mapping[str, Any] = {
    "continuous": True,
    "outlived": True,
    "meanwhile": 0.1,
    "kill": 0.05,
    "start": 0.12,
    "processes": 12,
}

LED_MUTATIONS: Mapping[str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any]]] = {
    "resume ended attempts": (resume_ended_attempts, _LED),
    "abort before the list": (abort_before_the_list, {**_LED, "fail_region": 0.05}),
    "list without a look": (
        list_without_a_look,
        {**_LED, "fail_region": 0.05, "pause": 0.1, "meanwhile": 0.5, "kill": 0.01},
    ),
    "keep the list of the last leader": (keep_the_list_of_the_last_leader, _LED),
    "sweep resumed attempts": (sweep_resumed_attempts, _LED),
    "forget reported epochs": (forget_reported_epochs, _LED),
    "acknowledge decided epochs": (acknowledge_decided_epochs, _LED),
    "resume after a return": (resume_after_a_return, {**_LED, "restore": 0.08}),
    "resume after two returns": (
        resume_after_two_returns,
        {**_LED, "restore": 0.1, "kill": 0.0, "meanwhile": 0.4},
    ),
    "go back at each start": (go_back_at_each_start, {**_LED, "restore": 0.08}),
    "resume beyond a rewind": (
        resume_beyond_a_rewind,
        {
            **_LED,
            "keyed": True,
            "disk": True,
            "add": 0.0,
            "topic": True,
            "restore": 0.08,
        },
    ),
    "repair beside the attempt": (repair_beside_the_attempt, {**_LED, "expire": 0.08}),
    "resume without moved state": (
        resume_without_moved_state,
        {**_LED, "keyed": True, "disk": True, "add": 0.0, "partitions": 5, "move": 0.6},
    ),
    "take splits of an earlier leader": (
        take_splits_of_an_earlier_leader,
        {**_LED, "add": 0.05, "old": 0.2},
    ),
}
"""Each broken rule, with a profile of failures that shows it."""
