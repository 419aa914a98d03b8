"""A new job from the state of another one: kills at each step, two starts at once, refusals."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.restoring import (
    RestoredState,
    RestoreRequest,
)
from sluice.runtime.coordinator.start.translation import RestoreRules
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    SourceChangedError,
    StreamError,
    WrongJobError,
)
from sluice.runtime.model.checkpoint_record import (
    RESTORED_FROM_URI,
    RESTORED_OPERATORS,
    CheckpointRecord,
    OperatorNode,
)
from sluice.runtime.savepoint.savepoint import Savepoint
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.starting_job import GRAPH, PLAN, Job, record
from tests.kit.fakes import FakeSource

URI = "file:///savepoints/one"
STATE = replace(
    record(9).regions[0],
    batch_id=8,
    splits=(split(0, 80, 90),),
)


def saved(**changes: Any) -> CheckpointRecord:
    return record(9, job_name="another", cluster_ids=("east",), **changes)


@dataclass
class Copies:
    """The request of a restore, and what its starts have copied."""

    record: CheckpointRecord = field(default_factory=saved)
    rules: RestoreRules = field(default_factory=RestoreRules)
    clusters: dict[str, str] = field(default_factory=dict)
    uri: str = URI
    opened: int = 0
    copied: list[str] = field(default_factory=list)
    damage: StreamError | None = None

    def request(self, **changes: Any) -> RestoreRequest:
        made = RestoreRequest(
            uri=self.uri, rules=self.rules, clusters=self.clusters, open=self.open, copy=self.copy
        )
        return replace(made, **changes)

    def open(self) -> Savepoint:
        self.opened += 1
        if self.damage is not None:
            raise self.damage
        return Savepoint(uri=self.uri, fs=LocalFileSystem(Path("/nowhere")), record=self.record)

    def copy(self, _: Savepoint, states: Sequence[RestoredState]) -> Iterator[None]:
        for state in states:
            assert state.now.state is not None
            self.copied.append(state.now.state.location)
            yield


def plan_of(
    *names: str, stateful: bool = False, graph: tuple[OperatorNode, ...] = GRAPH
) -> JobPlan:
    return JobPlan(
        name="job",
        regions=tuple(
            RegionPlan(
                name=name,
                source_ids=("source",),
                sink_ids=("sink",),
                stateful=stateful,
                chained=True,
            )
            for name in names
        ),
        graph=graph,
    )


ORDERS = plan_of("orders")


def in_region(*names: str) -> CheckpointRecord:
    parts = [
        replace(STATE, region=name, splits=(split(at, 80, 90 + at),))
        for at, name in enumerate(names)
    ]
    return saved(regions=tuple(parts))


def test_a_restore_begins_a_new_job_at_the_old_positions(caplog: pytest.LogCaptureFixture) -> None:
    """New job id, first checkpoint 0, first attempt: nothing of the old job's numbers."""
    caplog.set_level(logging.INFO)
    job, copies = Job(), Copies(record=in_region("orders"))
    found = job.start(plan=ORDERS, restore_from=copies.request())
    assert found.is_new
    assert found.attempt_id == found.record.checkpoint_id == 0
    assert found.record.job_uid != copies.record.job_uid
    assert found.record.job_name == "job"
    assert [s.end_offset for s in found.regions["orders"].splits] == [90]
    assert job.source.restored == [split(0, 90, 90)]
    assert found.record.committables == ()
    assert found.record.settings[RESTORED_FROM_URI] == URI
    matches = json.loads(found.record.settings[RESTORED_OPERATORS])
    assert [(m["name"], m["matched_by"]) for m in matches] == [("orders", "id"), ("copy", "id")]
    assert "operator matched: kind=source name=orders id=source" in caplog.text


@pytest.mark.parametrize("names", [("orders-0", "orders-1"), ("orders",)])
def test_another_number_of_regions_takes_all_splits(names: tuple[str, ...]) -> None:
    before = ("orders",) if len(names) == 2 else ("orders-0", "orders-1")
    start = in_region(*before)
    if len(before) == 1:
        region = replace(start.regions[0], splits=(split(0, 80, 90), split(1, 80, 91)))
        start = replace(start, regions=(region,))
    job = Job()
    job.source.ends[1] = 100
    found = job.start(plan=plan_of(*names), restore_from=Copies(record=start).request())
    splits = [s for region in found.record.regions for s in region.splits]
    assert {region.region for region in found.record.regions} == set(names)
    assert sorted(s.end_offset for s in splits) == [90, 91]
    assert found.record.assignment is not None
    assert found.assignment == found.record.assignment


def test_a_stateful_region_gets_its_state_under_a_name_of_this_start() -> None:
    start = in_region("orders")
    state = replace(
        start.regions[0],
        state=_state(),
    )
    frames = (
        GRAPH[0],
        OperatorNode(operator_id="f", name="count", kind="transform", upstream=("source",)),
        replace(GRAPH[1], upstream=("f",)),
    )
    copies = Copies(record=replace(start, regions=(state,), graph=frames))
    job = Job()
    found = job.start(
        session="s-1",
        plan=plan_of("orders", stateful=True, graph=frames),
        restore_from=copies.request(),
    )
    region = found.regions["orders"]
    assert copies.copied == ["spark/orders/restored-s-1/state"]
    assert region.state is not None
    assert region.state.location == copies.copied[0]
    assert (region.batch_id, region.attempt_id) == (8, 0)
    assert region.query_id


def _state() -> Any:
    from tests.kit.coordinator.starting_job import NEVER_WRITTEN

    return replace(NEVER_WRITTEN, operators=((0, "stateStoreSave"),))


STEPS = ("before-restore-copy", "after-restore-copy", "before-first", "after-first")


def killed_at(job: Job, point: str, session: str, request: RestoreRequest) -> None:
    steps = job.sequence(session=session, plan=ORDERS).run(timeout_s=30.0, restore_from=request)
    while next(steps) != point:
        pass
    steps.close()


@pytest.mark.parametrize("again", STEPS)
@pytest.mark.parametrize("point", STEPS)
def test_a_restore_that_is_killed_happens_once(point: str, again: str) -> None:
    """Killed twice in a row; the third start makes one job, at the right positions."""
    job, copies = Job(), Copies(record=in_region("orders"))
    for session, at in (("first", point), ("second", again)):
        if job.store.slots():  # the job exists: this start only resumes it
            job.start(session=session, plan=ORDERS, restore_from=copies.request())
        else:
            killed_at(job, at, session, copies.request())
    found = job.start(session="third", plan=ORDERS, restore_from=copies.request())
    assert [s.end_offset for s in found.regions["orders"].splits] == [90]
    assert len({each.job_uid for each in job.store.history}) == 1
    assert found.record.checkpoint_id == 0


def test_of_two_starts_at_once_the_second_resumes_the_job_of_the_first() -> None:
    job, copies = Job(), Copies(record=in_region("orders"))

    def overtake(point: str) -> None:
        if point == "before-first":
            steps = job.sequence(session="other", plan=ORDERS).run(
                timeout_s=30.0, restore_from=copies.request()
            )
            for _ in steps:
                pass

    found = job.start(session="slow", plan=ORDERS, restore_from=copies.request(), at=overtake)
    assert not found.is_new
    assert found.record.leader_session_id == "other"
    assert [s.end_offset for s in found.regions["orders"].splits] == [90]
    assert len({each.job_uid for each in job.store.history}) == 1


def test_a_restart_with_the_same_uri_resumes_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    """A cluster manager starts the same program again; the savepoint may be disposed of by then."""
    job, copies = Job(), Copies(record=in_region("orders"))
    job.start(session="first", plan=ORDERS, restore_from=copies.request())
    copies.damage = DamagedCheckpointError("gone", {}, "Find it.")
    found = job.start(session="second", plan=ORDERS, restore_from=copies.request())
    assert not found.is_new
    assert f"resuming from its newest decision: restore_from={URI}" in caplog.text
    assert copies.opened == 1


@pytest.mark.parametrize("other", ["file:///savepoints/two", None])
def test_a_directory_of_another_job_is_refused(other: str | None) -> None:
    job, copies = Job(), Copies(record=in_region("orders"))
    first = None if other is None else replace(copies.request(), uri=other)
    job.start(session="first", plan=ORDERS, restore_from=first)
    published = dict(job.store.records)
    with pytest.raises(ConfigError, match="directory of a restored job is not empty"):
        job.start(session="second", plan=ORDERS, restore_from=copies.request())
    assert job.store.records == published


def test_a_restore_that_a_new_job_overtakes_is_refused() -> None:
    """Another program with the same directory began without a restore: it has other positions."""
    job, copies = Job(), Copies(record=in_region("orders"))

    def overtake(point: str) -> None:
        if point == "before-first":
            job.start(session="other", plan=ORDERS)

    with pytest.raises(ConfigError, match="is not empty"):
        job.start(session="slow", plan=ORDERS, restore_from=copies.request(), at=overtake)


def _damaged(copies: Copies, _: Job) -> RestoreRequest:
    copies.damage = DamagedCheckpointError("a file is damaged", {"path": "x"}, "Restore it.")
    return copies.request()


def _unknown(copies: Copies, _: Job) -> RestoreRequest:
    copies.rules = RestoreRules(topic_map={"nothing": "x"})
    return copies.request()


def _elsewhere(copies: Copies, _: Job) -> RestoreRequest:
    copies.clusters["source"] = "west"
    return copies.request()


def _changed(copies: Copies, job: Job) -> RestoreRequest:
    job.source.changed = SourceChangedError("a topic is missing", {"topic": "input"}, "Make it.")
    return copies.request()


def _unfit(copies: Copies, _: Job) -> RestoreRequest:
    def refuse(_: Sequence[RestoredState]) -> None:
        raise ConfigError("the frames differ", {}, "Change them.")

    return copies.request(require_fitting=refuse)


@pytest.mark.parametrize("refused", [_damaged, _unknown, _elsewhere, _changed, _unfit])
def test_a_refused_restore_writes_nothing(
    refused: Callable[[Copies, Job], RestoreRequest],
) -> None:
    job, copies = Job(), Copies(record=in_region("orders"))
    with pytest.raises(StreamError):
        job.start(plan=ORDERS, restore_from=refused(copies, job))
    assert not job.store.records
    assert not copies.copied
    assert job.points == []


def test_another_cluster_is_refused_by_both_ids_unless_its_topics_are_named() -> None:
    copies = Copies(record=in_region("orders"), clusters={"source": "west"})
    with pytest.raises(ConfigError, match=r"cluster_id=west checkpoint_has=east topics=input"):
        Job().start(plan=ORDERS, restore_from=copies.request())
    copies.rules = RestoreRules(topic_map={"input": "input"})
    found = Job().start(plan=ORDERS, restore_from=copies.request())
    (position,) = found.regions["orders"].splits
    assert position.topic_id == "topic-uuid", "of the topic as it is there"


def test_a_new_source_begins_at_its_own_offsets() -> None:
    """Its region begins beside the restored one."""
    job = Job()
    job.other_sources["audit"] = FakeSource("audit", {0: 7, 1: 9})
    graph = (*GRAPH, OperatorNode(operator_id="audit", name="audit", kind="source", upstream=()))
    audit = replace(PLAN.regions[0], name="audit", source_ids=("audit",))
    plan = replace(plan_of("orders", graph=graph), regions=(*ORDERS.regions, audit))
    found = job.start(plan=plan, restore_from=Copies(record=in_region("orders")).request())
    assert [s.name for s in found.regions["audit"].splits] == ["input-0", "input-1"]
    assert [s.end_offset for s in found.regions["orders"].splits] == [90]


def test_state_that_only_the_old_job_may_have_is_refused() -> None:
    from tests.kit.coordinator.core_driver import committable

    region = replace(in_region("orders").regions[0], operator_states=(committable("held"),))

    def refuse(*_: object) -> Any:
        raise ConfigError("rows are held back in files of the old job", {}, "Take a savepoint.")

    job, copies = Job(), Copies(record=saved(regions=(region,)))
    with pytest.raises(ConfigError, match="held back"):
        job.start(plan=ORDERS, restore_from=copies.request(transferred=refuse))
    assert not job.store.records


def test_a_sink_with_state_that_moved_to_another_pipeline_is_refused() -> None:
    """The next batch of its old region would drop the state."""
    from tests.kit.coordinator.core_driver import committable

    region = replace(in_region("orders").regions[0], operator_states=(committable("kept"),))
    moved = replace(ORDERS.regions[0], sink_ids=("other",))
    audit = replace(PLAN.regions[0], name="audit", source_ids=("audit",))
    graph = (*GRAPH, OperatorNode(operator_id="audit", name="audit", kind="source", upstream=()))
    job = Job()
    job.other_sources["audit"] = FakeSource("audit", {0: 7})
    with pytest.raises(WrongJobError, match="a sink with state has moved"):
        job.start(
            plan=replace(ORDERS, regions=(moved, audit), graph=graph),
            restore_from=Copies(record=saved(regions=(region,))).request(),
        )
    assert not job.store.records


def test_a_topic_map_confirms_only_the_sources_that_it_renames() -> None:
    """Another source reads a topic of that name already: its own cluster is not confirmed."""
    audit = replace(split(0, 0, 7, source_id="audit"), topic="audited")
    graph = (*GRAPH, OperatorNode(operator_id="audit", name="audit", kind="source", upstream=()))
    regions = (*in_region("orders").regions, replace(STATE, region="audit", splits=(audit,)))
    plan = replace(
        plan_of("orders", graph=graph),
        regions=(*ORDERS.regions, replace(PLAN.regions[0], name="audit", source_ids=("audit",))),
    )
    job = Job()
    job.other_sources["audit"] = FakeSource("audit", {0: 7})
    copies = Copies(
        record=saved(regions=regions, graph=graph),
        rules=RestoreRules(topic_map={"input": "audited"}),
        clusters={"source": "west", "audit": "west"},
    )
    with pytest.raises(ConfigError, match=r"source=audit cluster_id=west .*topics=audited"):
        job.start(plan=plan, restore_from=copies.request())
