"""Rule 11 in several regions: exactly what is lost is written again, or the ranges are named."""

import dataclasses
from typing import Any

import pytest

from runtime.checkpoint.losses import LostCommittables, lost_error, why_lost
from runtime.checkpoint.messages import (
    Commit,
    EndJob,
    NoteUnsettled,
    Publish,
    Repair,
    Repaired,
    StepFailed,
)
from runtime.checkpoint.plan import CheckpointSettings, OnLost, RegionPlan
from runtime.checkpoint.repairs import Repairs
from runtime.checkpoint.steps import drive
from runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from runtime.errors import (
    DataLostError,
    FencedError,
    SourceChangedError,
    TransactionLostError,
    TransactionUnknownError,
)
from runtime.model import RegionRecord, StateEntry, Verdict
from tests.core_driver import FAST, CoreDriver, committable, split
from tests.lost_work import Rewriter, accept, away, half_lost, two_regions
from tests.starting_job import Job, record

CHAINED = (RegionPlan(name="main", source_ids=("source",), chained=True),)
REPAIRING = dataclasses.replace(FAST, on_lost=OnLost.REPAIR)


# --- in a run -----------------------------------------------------------------------------------


def test_rule_11_of_several_regions_only_the_lost_slice_is_repaired() -> None:
    """What is committed stays as it is; what is open in others is committed with the repair."""
    plans = (*CHAINED, RegionPlan(name="side", source_ids=("source",), chained=True))
    driver = CoreDriver(REPAIRING, regions=plans)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side"), region="side")
    (repair,) = driver.seen(Repair)
    (lost,) = repair.lost
    assert (lost.region.region, lost.committables) == ("main", (committable("main.0.1"),))
    replaced = {b"main.0.1": committable("replacement")}
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert driver.seen(Commit)[1].committables == (committable("replacement"),)
    assert driver.core.last_committed == 1


def test_rule_11_one_region_that_cannot_be_repaired_stops_the_job_with_the_ranges() -> None:
    """Its function is declared non-deterministic; the ranges are those of what is lost alone."""
    driver = _mixed_run()
    driver.outcomes[b"side.0.1"] = CommitOutcome.ABORTED
    _ack_both(driver)
    assert not driver.seen(Repair)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionLostError)
    assert "regions=side ranges=input-1:[0,3)" in str(end.error)


def test_rule_11_what_can_be_written_again_is_before_the_rest_stops_the_job() -> None:
    """Two regions have lost something; the error names only the one that stays so."""
    driver = _mixed_run()
    driver.outcomes |= dict.fromkeys((b"main.0.1", b"side.0.1"), CommitOutcome.ABORTED)
    _ack_both(driver)
    (repair,) = driver.seen(Repair)
    assert [lost.region.region for lost in repair.lost] == ["main"]
    assert not driver.seen(EndJob)
    replaced = {b"main.0.1": committable("replacement")}
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert committable("replacement") in driver.seen(Commit)[-1].committables
    (end,) = driver.seen(EndJob)
    assert "regions=side ranges=input-1:[0,3)" in str(end.error)


def _mixed_run() -> CoreDriver:
    """A region that can be repaired, and one that cannot."""
    random = RegionPlan(name="side", source_ids=("source",), chained=True, deterministic=False)
    return CoreDriver(REPAIRING, regions=(*CHAINED, random))


def _ack_both(driver: CoreDriver) -> None:
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side"), region="side")


def _half_lost_run(
    settings: CheckpointSettings = FAST, *, side: CommitOutcome = CommitOutcome.PENDING
) -> CoreDriver:
    """A decision of two regions: one transaction is lost, the other one's coordinator is away."""
    plans = (*CHAINED, RegionPlan(name="side", source_ids=("source",), chained=True))
    driver = CoreDriver(settings, regions=plans)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.outcomes[b"side.0.1"] = side
    _ack_both(driver)
    return driver


def test_rule_11_what_is_not_lost_is_committed_before_the_job_ends() -> None:
    """Nobody else would do it until the next start, and it may be lost by then."""
    driver = _half_lost_run()
    for _ in range(20):
        driver.tick(FAST.max_retry_s)
    assert not driver.seen(EndJob)
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert "regions=main ranges=input-0:[0,3)" in str(end.error)


def test_rule_11_what_is_lost_meanwhile_is_named_with_it() -> None:
    """The error tells all of it."""
    driver = _half_lost_run()
    driver.outcomes[b"side.0.1"] = CommitOutcome.ABORTED
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert "regions=main,side ranges=input-0:[0,3) input-1:[0,3)" in str(end.error)


def test_rule_11_a_loss_is_told_in_time_though_the_rest_stays_open() -> None:
    """The limit is that of every decision that cannot be settled."""
    driver = _half_lost_run()
    driver.tick(FAST.settle_timeout_s - FAST.max_retry_s)
    assert not driver.seen(EndJob)
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionLostError)
    assert driver.core.is_idle, "the next start goes on with what is open"


def test_rule_5_what_is_not_unknown_is_committed_before_the_job_ends() -> None:
    """As with what is lost, whatever the limit for the unknown."""
    driver = _half_lost_run()
    driver.outcomes[b"main.0.1"] = CommitOutcome.UNKNOWN
    for _ in range(2 * round(FAST.unknown_timeout_s / FAST.max_retry_s)):
        driver.tick(FAST.max_retry_s)
    assert not driver.seen(EndJob)
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionUnknownError)


GONE = DataLostError("retention has taken the range", {"region": "main"}, "Look.")


def test_rule_11_what_is_not_lost_is_committed_before_a_failed_repair_ends_the_job() -> None:
    """As where nothing could be repaired: by the next start it may be lost, too."""
    driver = _half_lost_run(REPAIRING)
    _fail(driver, GONE)
    for _ in range(20):
        driver.tick(FAST.max_retry_s)
    assert not driver.seen(EndJob)
    assert committable("side.0.1") in driver.seen(Commit)[-1].committables
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    (end,), (noted,) = driver.seen(EndJob), driver.seen(NoteUnsettled)
    assert end.error is GONE
    assert [work.region for work in noted.works] == ["main"]
    assert len(driver.seen(Repair)) == 1, "it is the next start's to try again"
    assert driver.core.is_idle


def test_rule_11_nothing_is_decided_behind_a_repair_that_has_failed() -> None:
    """The same as behind a loss that nobody could repair."""
    driver = _half_lost_run(dataclasses.replace(REPAIRING, max_concurrent=2))
    _fail(driver, GONE)
    driver.tick(FAST.interval_s or 0)
    driver.ack(driver.poll(9))
    driver.ack(driver.poll(9, region="side"), region="side")
    driver.tick(FAST.max_retry_s)
    assert [each.checkpoint_id for each in driver.seen(Publish)] == [1]


@pytest.mark.parametrize("unable", ["main", "side"])
def test_rule_11_a_repair_that_fails_hinders_no_other_regions(unable: str) -> None:
    """Each is a step of its own, whichever comes first; what stays lost is named, and no more."""
    able = "side" if unable == "main" else "main"
    driver = _half_lost_run(REPAIRING, side=CommitOutcome.ABORTED)
    for _ in range(2):
        (lost,) = driver.seen(Repair)[-1].lost
        if lost.region.region == unable:
            _fail(driver, GONE)
        else:
            replaced = {f"{able}.0.1".encode(): committable("replacement")}
            driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert any(committable("replacement") in each.committables for each in driver.seen(Commit))
    (end,), (noted,) = driver.seen(EndJob), driver.seen(NoteUnsettled)
    assert end.error is GONE
    assert [work.region for work in noted.works] == [unable]


def test_rule_6_a_repair_that_is_fenced_changes_nothing_more() -> None:
    """Whoever has taken over settles the decision."""
    driver = _half_lost_run(REPAIRING)
    commits = len(driver.seen(Commit))
    _fail(driver, FencedError("another run has sealed", {}, "It goes on."))
    driver.tick(FAST.max_retry_s)
    assert driver.core.is_fenced
    assert len(driver.seen(Commit)) == commits


def _fail(driver: CoreDriver, error: Exception) -> None:
    """The repair that was asked for last cannot be done."""
    repair = driver.seen(Repair)[-1]
    driver.tell(StepFailed(checkpoint_id=repair.checkpoint_id, error=error))


def test_rule_11_nothing_is_decided_behind_a_loss_that_ends_the_job() -> None:
    """It could not be committed before somebody has looked at the loss, and be lost as well."""
    driver = _half_lost_run(dataclasses.replace(FAST, max_concurrent=2))
    driver.tick(FAST.max_retry_s)
    driver.tick(FAST.interval_s or 0)
    driver.ack(driver.poll(9))
    driver.ack(driver.poll(9, region="side"), region="side")
    assert [each.checkpoint_id for each in driver.seen(Publish)] == [1]
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    assert driver.seen(EndJob)
    assert [(each.checkpoint_id, each.verdict) for each in driver.seen(Publish)] == [
        (1, Verdict.DECIDED),
        (2, Verdict.ABORTED),
    ]


def test_the_ranges_of_an_error_are_those_of_the_lost_transactions_where_they_are_told() -> None:
    """Another task's part of the epoch is visible: to write it again by hand would double it."""
    region = RegionRecord(
        region="main", generation=0, splits=(split(0, 0, 5), split(1, 0, 9), split(2, 4, 4))
    )
    lost = (LostCommittables(region=region, committables=(committable("gone"),)),)
    done = CommitReport(outcome=CommitOutcome.COMMITTED)
    gone = CommitReport(outcome=CommitOutcome.ABORTED, detail="x", ranges=("input-1:[0,9)",))
    assert "ranges=input-1:[0,9) details=x" in str(lost_error(7, lost, (done, gone)))
    silent = CommitReport(outcome=CommitOutcome.ABORTED)
    for reports in ((), (gone, silent)):
        assert "ranges=input-0:[0,5) input-1:[0,9) " in str(lost_error(7, lost, reports))


# --- at a start ---


def test_rule_11_exactly_the_lost_slices_of_several_regions_are_written_again() -> None:
    """What is committed, or can be, is left alone; each region's slice is asked for by itself."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    job.start(plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == [
        "again-1",
        "again-2",
        "main-done",
        "side-open",
    ]
    assert rewriter.calls == 2
    assert 1 in job.store.committed


def test_rule_11_a_function_declared_non_deterministic_stops_with_the_ranges() -> None:
    """Also with ``repair``; what is not lost is committed all the same."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    with pytest.raises(TransactionLostError, match=r"ranges=input-0:\[0,10\) input-1:\[0,10\)"):
        job.start(plan=two_regions(deterministic=False))
    assert rewriter.calls == 0
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]
    assert 1 not in job.store.committed


def test_rule_11_a_start_writes_again_what_it_can_before_the_rest_stops_it() -> None:
    """What is lost of the other region is named, and nothing else."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    plan = two_regions()
    main, side = plan.regions
    plan = dataclasses.replace(plan, regions=(main, dataclasses.replace(side, deterministic=False)))
    with pytest.raises(TransactionLostError, match=r"regions=side ranges=input-1:\[0,10\) "):
        job.start(plan=plan)
    assert rewriter.calls == 1
    visible = sorted(map(str, job.broker.read_committed(0)))
    assert visible == ["again-1", "main-done", "side-open"]
    assert 1 not in job.store.committed


def test_rule_11_a_start_commits_what_is_not_lost_before_it_ends() -> None:
    """A coordinator that is away comes back within the start's time."""
    job = half_lost()
    coordinators = away(job, "side-open")
    retries: list[str] = []

    def at(point: str) -> None:
        retries.extend([point] if point == "settle-retry" else [])
        if len(retries) == 3:
            coordinators.away.clear()

    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions(), at=at)
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


def test_rule_11_a_start_tells_a_loss_in_time_though_the_rest_stays_open() -> None:
    """Its own limit is the bound."""
    job = half_lost()
    away(job, "side-open")
    began_s = job.clock()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    assert 30.0 <= job.clock() - began_s <= 31.0


def test_rule_11_whatever_ends_a_repair_is_noted_and_can_be_accepted() -> None:
    """Else every start ends the same way, and a person has nothing to accept."""

    class Broken(Rewriter):
        def repair(self, *args: object, **limits: object) -> dict[bytes, StateEntry]:
            raise ValueError("a function fails today")

    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = Broken(job)
    with pytest.raises(ValueError, match="fails today"):
        job.start(plan=two_regions())
    assert sorted(work.region for work in job.store.unsettled(1)) == ["main", "side"]
    accept(job.store, 1)
    job.start(session="next", plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


def test_rule_11_what_a_repair_has_written_is_aborted_if_the_next_region_cannot_be() -> None:
    """No record names it, and no sweep takes what is of the newest generation."""
    job = half_lost()
    (main, side) = job.store.records[1].regions
    parts = tuple(
        LostCommittables(region=region, committables=region.committables[:1])
        for region in (main, side)
    )

    class HalfAble(Rewriter):
        def repair(self, checkpoint_id: int, lost: object, **limits: object) -> Any:
            if lost is parts[1]:
                raise DataLostError("retention has taken the range", {}, "Look.")
            return super().repair(checkpoint_id, lost, **limits)

    repairs = Repairs(
        HalfAble(job),
        job.store,
        sinks={"sink": job.sink},
        sources={"source": job.source},
        session="s",
        job_uid="uid",
        generation=2,
        timeout_s=1.0,
    )
    with pytest.raises(DataLostError):
        drive(repairs.run(Repair(checkpoint_id=1, lost=parts)))
    left = [each.transactional_id for each in job.broker.ongoing()]
    assert [name.rpartition("/")[2] for name in left] == ["side-open"]


class _HalfAble(Rewriter):
    """Retention has taken the range of one region, and not the other's."""

    def __init__(self, job: Job, unable: str) -> None:
        super().__init__(job)
        self._unable = unable

    def repair(
        self, checkpoint_id: int, lost: LostCommittables, **limits: object
    ) -> dict[bytes, StateEntry]:
        if lost.region.region == self._unable:
            raise DataLostError("retention has taken the range", {}, "Look.")
        return super().repair(checkpoint_id, lost, **limits)


@pytest.mark.parametrize("unable", ["main", "side"])
def test_rule_11_a_region_is_written_again_though_anothers_range_is_gone(unable: str) -> None:
    """Only what cannot be is named, and is all that a person gives up."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = _HalfAble(job, unable)
    with pytest.raises(DataLostError):
        job.start(plan=two_regions())
    whole = ["again-1", "main-done", "side-open"]
    assert sorted(map(str, job.broker.read_committed(0))) == whole
    assert not job.broker.ongoing()
    assert [work.region for work in job.store.unsettled(1)] == [unable]
    accept(job.store, 1)
    job.start(session="next", plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == whole
    assert 1 in job.store.committed


@pytest.mark.parametrize("points", range(20))
def test_rule_11_a_start_that_dies_between_two_repairs_leaves_the_rest_to_the_next(
    points: int,
) -> None:
    """Each is on record by itself; what was written for none is swept."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    steps = job.sequence(session="dies", plan=two_regions()).run(timeout_s=30.0, restore_from=None)
    for _ in range(points):
        next(steps, None)
    steps.close()
    job.start(session="lives", plan=two_regions())
    first, second, *rest = sorted(map(str, job.broker.read_committed(0)))
    assert rest == ["main-done", "side-open"]
    assert first.startswith("again")
    assert second.startswith("again")
    assert rewriter.calls <= 3
    assert len(job.store.repairs[1]) == 2
    assert not job.broker.ongoing()
    assert 1 in job.store.committed


def test_rule_11_a_repair_that_fails_slowly_leaves_the_rest_its_time() -> None:
    """What a repair takes does not count for the limit of the start."""
    job = half_lost()
    coordinators = away(job, "side-open")
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)

    class Slow(Rewriter):
        def repair(self, *args: object, **limits: object) -> dict[bytes, StateEntry]:
            job.clock.advance(1000.0)
            raise DataLostError("retention has taken the range", {}, "Look.")

    def at(point: str) -> None:
        if point == "settle-retry":
            coordinators.away.clear()

    job.repairer = Slow(job)
    with pytest.raises(DataLostError):
        job.start(plan=two_regions(), at=at)
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


class _Overtaken(Rewriter):
    """Another start's repair of one of two committables is on record first."""

    def __init__(self, job: Job, first: StateEntry) -> None:
        super().__init__(job)
        self._first = first

    def repair(self, checkpoint_id: int, lost: object, **limits: object) -> dict[bytes, StateEntry]:
        """See `runtime.checkpoint.repairs.Repairer`."""
        if not self.calls:
            other = self.job.pre_commit("other", generation=1)
            self.job.store.repairs.setdefault(checkpoint_id, []).append(
                {self._first.payload: other}
            )
        assert isinstance(lost, LostCommittables)
        self.calls += 1
        return {
            entry.payload: self.job.pre_commit(f"again-{self.calls}-{number}", generation=1)
            for number, entry in enumerate(lost.committables)
        }


def test_rule_11_what_another_repair_has_left_is_written_again() -> None:
    """It was one of the two alone: the other is no more beyond repair than before."""
    job = Job(record(0), committed=(0,))
    entries = (job.pre_commit("one"), job.pre_commit("two"))
    job.store.records[1] = record(1, entries=entries)
    job.sink.committer.abort(entries, timeout_s=1.0)
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = _Overtaken(job, entries[0])
    job.start()
    assert sorted(map(str, job.broker.read_committed(0))) == ["again-2-0", "other"]
    assert not job.broker.ongoing()


def test_rule_11_an_error_names_all_that_is_lost_or_why_it_could_not_be_mended() -> None:
    """Where each of several regions was refused for itself, one of their errors would be half."""
    parts = [
        LostCommittables(
            region=RegionRecord(
                region=name, generation=1, batch_id=1, splits=(split(number, 0, 5),)
            ),
            committables=(),
        )
        for number, name in enumerate(("main", "side"))
    ]
    refused = TransactionLostError("its ranges give other records now", {}, "Look.")
    gone = DataLostError("retention has taken the range", {}, "Look.")
    assert why_lost(1, parts[:1], (), {"main": refused}) is refused
    assert "main,side" in str(why_lost(1, parts, (), {"main": refused, "side": refused}))
    assert why_lost(1, parts, (), {"main": refused, "side": gone}) is gone
    assert "regions=side" in str(why_lost(1, parts[1:], (), {"main": gone}))


class _OtherLog(Rewriter):
    """Reads by name, and finds as many records as were lost, of a log that was made again."""

    def repair(self, *args: Any, **limits: Any) -> dict[bytes, StateEntry]:
        written = super().repair(*args, **limits)
        self.job.source.changed = SourceChangedError("a topic was made again", {}, "Look.")
        return written


class _ShorterLog(Rewriter):
    """Of a source that goes on without what is gone (``failOnDataLoss=false``)."""

    def repair(self, *args: Any, **limits: Any) -> dict[bytes, StateEntry]:
        written = super().repair(*args, **limits)
        self.job.source.ends.clear()
        return written


@pytest.mark.parametrize("repairer", [_OtherLog, _ShorterLog])
def test_rule_11_nothing_is_written_again_from_another_log_of_the_same_name(
    repairer: type[Rewriter],
) -> None:
    """It may hold as many records; what was lost is named instead, and the rest is settled."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = repairer(job)
    with pytest.raises(TransactionLostError, match=r"input-\d:\[\d+,\d+\)"):
        job.start(plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]
    assert job.broker.ongoing() == []
    assert not job.store.is_committed(1)
    assert sorted(work.region for work in job.store.unsettled(1)) == ["main", "side"]


def test_rule_11_a_loss_of_a_source_that_the_job_left_is_named() -> None:
    """Nobody can say whose log it is that was read."""
    job = half_lost()
    (lost, _) = job.store.records[1].regions
    part = LostCommittables(region=lost, committables=lost.committables[:1])
    repairs = Repairs(
        Rewriter(job),
        job.store,
        sinks={"sink": job.sink},
        sources={},
        session="s",
        job_uid="uid",
        generation=2,
        timeout_s=1.0,
    )
    with pytest.raises(TransactionLostError, match="reads it no more"):
        drive(repairs.run(Repair(checkpoint_id=1, lost=(part,))))
