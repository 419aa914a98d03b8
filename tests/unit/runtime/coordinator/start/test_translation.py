"""The record of another job as the first record of this one: ids, topics, regions, state."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.translation import RestoreRules, Translation, translate
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.functions.record_counts import COUNTS_KIND
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    Redistribution,
    RegionRecord,
    StateEntry,
    StateSnapshot,
)
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.starting_job import record as decided

Graph = tuple[OperatorNode, ...]


def graph(source: str = "kafka-orders", *, step: str = "count", uid: str | None = None) -> Graph:
    """A source, a frame and a sink."""
    return build_graph(
        [
            OperatorSpec(kind="source", name=source, uid=uid),
            OperatorSpec(kind="transform", name=step, upstream=(0,)),
            OperatorSpec(kind="sink", name="out", upstream=(1,)),
        ]
    )


OLD = graph()
STATE = StateSnapshot(
    provider="rocksdb",
    checkpoint_format_version=2,
    state_version=8,
    state_partitions=2,
    operators=((0, "stateStoreSave"),),
    location="spark/kafka-orders/state-3/state",
)


def read(partition: int, end: int, *, source: str = OLD[0].operator_id) -> SplitRange:
    return SplitRange(
        source_id=source,
        topic="orders",
        topic_id="uuid",
        partition=partition,
        start_offset=end - 5,
        end_offset=end,
        leader_epoch=4,
        leader_epoch_end=end,
        watermark_ms=end * 10,
    )


def state_of(operator_id: str, kind: str = "open-partitions") -> StateEntry:
    return StateEntry(
        operator_id=operator_id,
        state_name="s",
        kind=kind,
        version=1,
        redistribution=Redistribution.UNION,
        payload=b"x",
    )


def whole(*, stateful: bool = True) -> RegionRecord:
    return RegionRecord(
        region="kafka-orders",
        attempt_id=57,
        query_id="old",
        batch_id=7,
        splits=(read(0, 10), read(1, 20)),
        state=STATE if stateful else None,
        operator_states=(state_of(OLD[2].operator_id), state_of(OLD[1].operator_id, COUNTS_KIND)),
    )


def record(*regions: RegionRecord, nodes: Graph = OLD) -> CheckpointRecord:
    return decided(42, graph=nodes, regions=regions or (whole(),), cluster_ids=("east",))


def plan(nodes: Graph = OLD, *names: str, stateful: bool = True) -> JobPlan:
    names = names or ("kafka-orders",)
    return JobPlan(
        name="new",
        graph=nodes,
        regions=tuple(
            RegionPlan(
                name=name,
                source_ids=(nodes[0].operator_id,),
                sink_ids=(nodes[2].operator_id,),
                stateful=stateful,
            )
            for name in names
        ),
    )


def translated(
    job: JobPlan, *regions: RegionRecord, nodes: Graph = OLD, **rules: object
) -> Translation:
    return translate(record(*regions, nodes=nodes), job, RestoreRules(**rules))  # type: ignore[arg-type]


def ends(found: Translation) -> dict[str, Sequence[int]]:
    return {r.region: [s.end_offset for s in r.splits] for r in found.record.regions}


def test_the_same_program_takes_everything_over_as_a_new_job() -> None:
    """Its numbers begin again: attempts, and all but the batch that the state belongs to."""
    found = translated(plan())
    (region,) = found.record.regions
    assert found.dropped == ()
    assert (region.attempt_id, region.batch_id, region.query_id) == (0, 7, "")
    assert region.splits == (read(0, 10).at_end(), read(1, 20).at_end())
    assert region.operator_states == whole().operator_states
    assert found.taken["kafka-orders"].before == whole()


def test_a_stateless_region_has_no_batch_in_the_new_job() -> None:
    """Its batch ids begin at 0 again: an old one would count as decided, and its records would be
    lost."""
    found = translated(plan(stateful=False), whole(stateful=False))
    assert found.record.regions[0].batch_id is None


def test_a_renamed_source_is_found_by_its_uid() -> None:
    before, now = graph(uid="in"), graph("kafka-other", uid="in")
    read_by_uid = tuple(replace(s, source_id=before[0].operator_id) for s in whole().splits)
    old = replace(whole(), splits=read_by_uid, operator_states=())
    found = translated(plan(now, "kafka-other"), old, nodes=before)
    assert ends(found) == {"kafka-other": [10, 20]}
    assert [match.by.value for match in found.matches] == ["uid", "id", "id"]


def test_renamed_topics_lose_their_leader_epochs() -> None:
    """The other log has epochs of its own. Watermarks stay: they come from the records."""
    now = graph("kafka-eu")
    found = translated(plan(now, "kafka-eu"), topic_map={"orders": "eu"})
    (region,) = found.record.regions
    assert region.region == "kafka-eu"
    assert [(s.name, s.leader_epoch, s.leader_epoch_end) for s in region.splits] == [
        ("eu-0", None, None),
        ("eu-1", None, None),
    ]
    assert [s.watermark_ms for s in region.splits] == [100, 200]
    assert found.taken["kafka-eu"].sources == {OLD[0].operator_id: now[0].operator_id}


@pytest.mark.parametrize("topics", [{"order": "eu"}, {"orders": "eu", "x": "y"}])
def test_a_topic_that_the_checkpoint_lacks_is_refused(topics: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="topic_map does not fit"):
        translated(plan(), topic_map=topics)


def test_two_topics_that_would_be_one_are_refused() -> None:
    other = replace(read(2, 5), topic="more")
    with pytest.raises(ConfigError, match="twice=orders"):
        translated(
            plan(), replace(whole(), splits=(read(0, 10), other)), topic_map={"more": "orders"}
        )


def test_names_do_not_count_in_strict_mode() -> None:
    now = graph("kafka-eu")
    with pytest.raises(WrongJobError, match="match='strict' does not match by name"):
        translated(plan(now, "kafka-eu"), topic_map={"orders": "eu"}, by_name=False)


def test_state_without_an_operator_is_refused_and_named() -> None:
    now = graph("kafka-payments", step="sum")
    with pytest.raises(WrongJobError) as caught:
        translated(plan(now, "kafka-payments"))
    text = str(caught.value)
    assert "positions of source 'kafka-orders'" in text
    assert "topics orders" in text
    assert "Spark's state of region kafka-orders: transform 'count'" in text
    assert COUNTS_KIND not in text, "counts are no state that a restore needs"


def test_state_without_an_operator_may_be_left() -> None:
    """The new source then begins at its own starting offsets."""
    now = graph("kafka-payments", step="sum")
    found = translated(plan(now, "kafka-payments"), allow_non_restored_state=True)
    assert ends(found) == {"kafka-payments": []}
    assert found.new_sources == {now[0].operator_id}
    assert not found.taken
    assert len(found.dropped) == 3  # positions, Spark's state, state of the sink


def test_a_frame_that_lost_its_state_is_refused() -> None:
    with pytest.raises(WrongJobError, match="Spark's state of region kafka-orders"):
        translated(plan(stateful=False))
    found = translated(plan(stateful=False), allow_non_restored_state=True)
    assert ends(found) == {"kafka-orders": [10, 20]}
    assert found.record.regions[0].batch_id is None
    assert found.record.regions[0].state is None


def test_a_new_frame_begins_without_state_at_the_old_positions() -> None:
    parts = [
        replace(whole(stateful=False), region=f"kafka-orders-{n}", splits=(read(n, 10),))
        for n in range(2)
    ]
    found = translated(plan(), *parts)
    assert found.dropped == ()
    assert ends(found) == {"kafka-orders-0": [10], "kafka-orders-1": [10], "kafka-orders": []}


def test_regions_keep_their_numbers_under_the_new_name() -> None:
    now = graph("kafka-eu")
    parts = [
        replace(whole(stateful=False), region=f"kafka-orders-{n}", splits=(read(n, 10 + n),))
        for n in range(2)
    ]
    names = [f"kafka-eu-{n}" for n in range(4)]
    found = translated(plan(now, *names, stateful=False), *parts, topic_map={"orders": "eu"})
    assert ends(found) == {"kafka-eu-0": [10], "kafka-eu-1": [11]}
