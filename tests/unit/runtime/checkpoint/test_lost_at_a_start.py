"""Rule `two-phase-repair` at a start of several regions: exactly what is lost is written again, or
it is named."""

import dataclasses
from typing import Any

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables, why_lost
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.committing.repairs import Repairs
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Repair
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost
from sluice.runtime.errors import DataLostError, SourceChangedError, TransactionLostError
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.lost_work import Rewriter, accept, away, half_lost, two_regions
from tests.kit.coordinator.starting_job import Job, record


def _repairs(job: Job, repairer: Rewriter) -> Repairs:
    return Repairs(
        repairer=repairer,
        store=job.store,
        sinks={"sink": SerialSink(job.sink)},
        sources={"source": job.source},
        session="s",
        job_uid="uid",
        attempt_id=2,
        timeout_s=1.0,
    )


def test_two_phase_repair_exactly_the_lost_slices_of_several_regions_are_written_again() -> None:
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


def test_two_phase_repair_a_function_declared_non_deterministic_stops_with_the_ranges() -> None:
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    with pytest.raises(TransactionLostError, match=r"ranges=input-0:\[0,10\) input-1:\[0,10\)"):
        job.start(plan=two_regions(deterministic=False))
    assert rewriter.calls == 0
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]
    assert 1 not in job.store.committed


def test_two_phase_repair_what_a_sink_lost_that_another_pipeline_has_now_is_named() -> None:
    """The functions that made the records do not lead to it any more: nothing is written again,
    and nothing is passed over."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    plan = two_regions()
    main, side = plan.regions
    moved = dataclasses.replace(plan, regions=(dataclasses.replace(main, sink_ids=()), side))
    with pytest.raises(TransactionLostError, match=r"regions=main ranges=input-0:\[0,10\)"):
        job.start(plan=moved)
    assert rewriter.calls == 1, "that of the other region, whose sink has stayed"
    assert [work.region for work in job.store.unsettled(1)] == ["main"]


def test_two_phase_repair_a_start_writes_again_what_it_can_before_the_rest_stops_it() -> None:
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


def test_two_phase_repair_a_start_commits_what_is_not_lost_before_it_ends() -> None:
    """A coordinator that is away comes back within the start's time."""
    job = half_lost()
    coordinators = away(job, "side-open")
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions(), at=coordinators.back_at_retry(3))
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


def test_two_phase_repair_a_start_tells_a_loss_in_time_though_the_rest_stays_open() -> None:
    job = half_lost()
    away(job, "side-open")
    began_s = job.clock()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    assert 30.0 <= job.clock() - began_s <= 31.0


def test_two_phase_repair_a_start_tells_a_loss_at_once_where_nothing_else_is_open() -> None:
    job = half_lost()
    began_s = job.clock()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    assert job.clock() - began_s < 1.0


def test_two_phase_repair_a_start_writes_nothing_again_unless_it_is_reported_to() -> None:
    """The default is to stop with the ranges, also where it could."""
    job = half_lost()
    job.repairer = rewriter = Rewriter(job)
    with pytest.raises(TransactionLostError, match=r"ranges=input-0:\[0,10\) input-1:\[0,10\)"):
        job.start(plan=two_regions())
    assert rewriter.calls == 0
    assert not job.store.repairs


def test_two_phase_repair_a_loss_of_a_region_that_is_gone_and_read_nothing_is_named() -> None:
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    main, side = job.store.records[1].regions
    gone = dataclasses.replace(side, region="gone", splits=(), committables=side.committables[:1])
    side = dataclasses.replace(side, committables=side.committables[1:])
    job.store.records[1] = record(1, regions=(main, side, gone))
    with pytest.raises(TransactionLostError, match="regions=gone"):
        job.start(plan=two_regions())
    assert rewriter.calls == 1, "what main has lost is written again"


def test_two_phase_repair_whatever_ends_a_repair_is_noted_and_can_be_accepted() -> None:
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


def test_two_phase_repair_what_a_repair_has_written_is_aborted_if_the_next_region_cannot_be() -> (
    None
):
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

    with pytest.raises(DataLostError):
        drive(_repairs(job, HalfAble(job)).run(Repair(checkpoint_id=1, lost=parts)))
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
def test_two_phase_repair_a_region_is_written_again_though_anothers_range_is_gone(
    unable: str,
) -> None:
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
def test_two_phase_repair_a_start_that_dies_between_two_repairs_leaves_the_rest_to_the_next(
    points: int,
) -> None:
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    steps = job.sequence(session="dies", plan=two_regions()).run(timeout_s=30.0, restore_from=None)
    for _ in range(points):
        next(steps, None)
    steps.close()
    job.start(session="attempts", plan=two_regions())
    first, second, *rest = sorted(map(str, job.broker.read_committed(0)))
    assert rest == ["main-done", "side-open"]
    assert first.startswith("again")
    assert second.startswith("again")
    assert rewriter.calls <= 3
    assert len(job.store.repairs[1]) == 2
    assert not job.broker.ongoing()
    assert 1 in job.store.committed


def test_two_phase_repair_a_repair_that_fails_slowly_leaves_the_rest_its_time() -> None:
    job = half_lost()
    coordinators = away(job, "side-open")
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)

    class Slow(Rewriter):
        def repair(self, *args: object, **limits: object) -> dict[bytes, StateEntry]:
            job.clock.advance(1000.0)
            raise DataLostError("retention has taken the range", {}, "Look.")

    job.repairer = Slow(job)
    with pytest.raises(DataLostError):
        job.start(plan=two_regions(), at=coordinators.back_at_retry(1))
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


class _Overtaken(Rewriter):
    """Another start's repair of one of two committables is on record first."""

    def __init__(self, job: Job, first: StateEntry) -> None:
        super().__init__(job)
        self._first = first

    def repair(self, checkpoint_id: int, lost: object, **limits: object) -> dict[bytes, StateEntry]:
        """See `sluice.runtime.coordinator.committing.repairs.Repairer`."""
        if not self.calls:
            other = self.job.pre_commit("other", attempt_id=1)
            self.job.store.repairs.setdefault(checkpoint_id, []).append(
                {self._first.payload: other}
            )
        assert isinstance(lost, LostCommittables)
        self.calls += 1
        return {
            entry.payload: self.job.pre_commit(f"again-{self.calls}-{number}", attempt_id=1)
            for number, entry in enumerate(lost.committables)
        }


def test_two_phase_repair_what_another_repair_has_left_is_written_again() -> None:
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


def test_two_phase_repair_what_was_in_vain_is_not_put_on_record_later() -> None:
    """Another run was faster, so it is aborted: by a record that names it all would be lost."""
    job = half_lost()
    lost = LostCommittables(
        region=job.store.records[1].regions[0],
        committables=job.store.records[1].regions[0].committables[:1],
    )
    action = Repair(checkpoint_id=1, lost=(lost,))
    job.store.repairs[1] = [{lost.committables[0].payload: job.pre_commit("theirs")}]
    repairs = _repairs(job, rewriter := Rewriter(job))
    first, second = (drive(repairs.run(action)) for _ in range(2))
    assert first[0] is second[0] is PublishOutcome.TAKEN
    assert rewriter.calls == 2
    assert first[1] != second[1]


def test_two_phase_repair_an_error_names_all_that_is_lost_or_why_it_could_not_be_fixed() -> None:
    parts = [
        LostCommittables(
            region=RegionRecord(
                region=name, attempt_id=1, batch_id=1, splits=(split(number, 0, 5),)
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


class _OneOfTwo(Rewriter):
    """What was lost was made of some of the region's ranges."""

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        return lost.region.splits[:1]


def test_two_phase_repair_only_what_the_lost_work_was_made_of_has_to_be_there_still() -> None:
    job = half_lost()
    (main, _) = job.store.records[1].regions
    gone = dataclasses.replace(main.splits[0], partition=7)
    lost = LostCommittables(
        region=dataclasses.replace(main, splits=(*main.splits, gone)),
        committables=main.committables[:1],
    )

    action = Repair(checkpoint_id=1, lost=(lost,))
    with pytest.raises(TransactionLostError, match=r"ranges=input-7"):
        drive(_repairs(job, Rewriter(job)).run(action))
    outcome, _ = drive(_repairs(job, _OneOfTwo(job)).run(action))
    assert outcome is PublishOutcome.OURS


class _OtherLog(Rewriter):
    """Reads by name, and finds as many records as were lost, of a log that was made again."""

    def repair(self, *args: Any, **limits: Any) -> dict[bytes, StateEntry]:
        written = super().repair(*args, **limits)
        self.job.source.changed = SourceChangedError("a topic was made again", {}, "Look.")
        return written


class _ShorterLog(Rewriter):
    """Of a source that continues without what is gone (``failOnDataLoss=false``)."""

    def repair(self, *args: Any, **limits: Any) -> dict[bytes, StateEntry]:
        written = super().repair(*args, **limits)
        self.job.source.ends.clear()
        return written


@pytest.mark.parametrize("repairer", [_OtherLog, _ShorterLog])
def test_two_phase_repair_nothing_is_written_again_from_another_log_of_the_same_name(
    repairer: type[Rewriter],
) -> None:
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = repairer(job)
    with pytest.raises(TransactionLostError, match=r"input-\d:\[\d+,\d+\)"):
        job.start(plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]
    assert job.broker.ongoing() == []
    assert not job.store.is_committed(1)
    assert sorted(work.region for work in job.store.unsettled(1)) == ["main", "side"]


def test_two_phase_repair_a_loss_of_a_source_that_the_job_left_is_named() -> None:
    job = half_lost()
    (lost, _) = job.store.records[1].regions
    part = LostCommittables(region=lost, committables=lost.committables[:1])
    repairs = Repairs(
        repairer=Rewriter(job),
        store=job.store,
        sinks={"sink": SerialSink(job.sink)},
        sources={},
        session="s",
        job_uid="uid",
        attempt_id=2,
        timeout_s=1.0,
    )
    with pytest.raises(TransactionLostError, match="no longer reads this source"):
        drive(repairs.run(Repair(checkpoint_id=1, lost=(part,))))
