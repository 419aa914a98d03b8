"""Keyed state in a program that takes it over: its tables, their types, and what has no taker."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.keyed_matching import (
    verify_keyed_state,
    verify_partitioning,
)
from sluice.runtime.coordinator.start.recovery import verify_same_job
from sluice.runtime.coordinator.start.restoring import RestoreRequest
from sluice.runtime.coordinator.start.translation import RestoreRules, Translation, translate
from sluice.runtime.errors import ConfigError, StreamError, WrongJobError
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph
from sluice.runtime.model.checkpoint_record import CheckpointRecord, OperatorNode, RegionRecord
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, StateTableInfo
from sluice.runtime.savepoint.savepoint import Savepoint
from sluice.runtime.state.codec.schema_text import schema_to_json
from tests.kit.coordinator.checkpoint_records import keyed_state
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.starting_job import Job
from tests.kit.coordinator.starting_job import record as decided
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

_KEY = schema_to_json(pa.schema([("account", pa.string())]))
_VALUE = schema_to_json(pa.schema([("count", pa.int64())]))


def _graph(
    source: str = "kafka-orders",
    name: str = "counts",
    *,
    uid: str | None = None,
    kind: str = "aggregate",
) -> tuple[OperatorNode, ...]:
    return build_graph(
        [
            OperatorSpec(kind="source", name=source, uid="orders"),
            OperatorSpec(kind=kind, name=name, upstream=(0,), uid=uid),
            OperatorSpec(kind="sink", name="out", upstream=(1,)),
        ]
    )


def _table(operator_id: str, name: str = "totals", **changes: object) -> StateTableInfo:
    made = StateTableInfo(
        number=7,
        operator_id=operator_id,
        name=name,
        kind="aggregate",
        key_schema=_KEY,
        value_schema=_VALUE,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def _plan(nodes: tuple[OperatorNode, ...], *tables: StateTableInfo, regions: int = 1) -> JobPlan:
    return JobPlan(
        name="new",
        graph=nodes,
        regions=tuple(
            RegionPlan(
                name="kafka-orders" if regions == 1 else f"kafka-orders-{at}",
                source_ids=(nodes[0].operator_id,),
                sink_ids=(nodes[2].operator_id,),
                tables=tables,
            )
            for at in range(regions)
        ),
    )


def _record(nodes: tuple[OperatorNode, ...], *tables: StateTableInfo) -> CheckpointRecord:
    source_id = nodes[0].operator_id
    keyed = keyed_state((source_id, "input", 0), (source_id, "input", 1), operator_id="")
    region = RegionRecord(
        region="kafka-orders",
        attempt_id=3,
        batch_id=8,
        splits=(split(0, 80, 90, source_id=source_id), split(1, 80, 91, source_id=source_id)),
        keyed_state=replace(keyed, max_parallelism=0, tables=tables),
    )
    return decided(42, graph=nodes, regions=(region,), job_name="new")


_OLD = _graph()
_COUNTS = _OLD[1].operator_id


class TestSameJob:
    """A start that resumes: `verify_keyed_state`."""

    @staticmethod
    def _verify(*now: StateTableInfo, before: StateTableInfo = _table(_COUNTS)) -> None:  # noqa: B008
        verify_keyed_state(_record(_OLD, before), _plan(_OLD, *now))

    def test_the_same_tables_fit(self) -> None:
        self._verify(_table(_COUNTS), _table(_COUNTS, "new ones", number=8))

    def test_a_function_that_is_gone_is_named(self) -> None:
        with pytest.raises(WrongJobError, match=r"states=counts\.totals count=1"):
            self._verify(_table(_COUNTS, "others", number=8))

    @pytest.mark.parametrize("operator_id", ["", _COUNTS])
    def test_a_new_state_does_not_get_the_entries_of_another_one(self, operator_id: str) -> None:
        with pytest.raises(ConfigError, match=r"state=others checkpoint_has=totals number=7"):
            self._verify(_table(_COUNTS, "others"), before=_table(operator_id))

    def test_a_dropped_table_is_not_missed(self) -> None:
        self._verify(_table(_COUNTS, number=8), before=_table(""))

    def test_another_kind_is_refused(self) -> None:
        with pytest.raises(WrongJobError, match=r"another kind.*checkpoint=aggregate program=list"):
            self._verify(_table(_COUNTS, kind="list"))

    def test_another_key_is_refused_with_both_types(self) -> None:
        other = schema_to_json(pa.schema([("account", pa.int64())]))
        with pytest.raises(
            WrongJobError, match=r"checkpoint=account: string program=account: int64"
        ):
            self._verify(_table(_COUNTS, key_schema=other))

    def test_a_column_of_the_key_may_have_another_name(self) -> None:
        renamed = schema_to_json(pa.schema([("customer", pa.string())]))
        self._verify(_table(_COUNTS, key_schema=renamed))

    @pytest.mark.parametrize(
        "fields",
        [
            [("count", pa.float64())],
            [("total", pa.int64())],
            [("other", pa.int64()), ("count", pa.int64())],
            [("count", pa.int64()), pa.field("total", pa.int64(), nullable=False)],
        ],
    )
    def test_another_value_is_refused_with_both_schemas(self, fields: list[object]) -> None:
        value = schema_to_json(pa.schema(fields))
        with pytest.raises(ConfigError, match=r"checkpoint=count: int64 program="):
            self._verify(_table(_COUNTS, value_schema=value))

    def test_a_nullable_column_at_the_end_is_added(self) -> None:
        value = schema_to_json(pa.schema([("count", pa.int64()), ("total", pa.int64())]))
        self._verify(_table(_COUNTS, value_schema=value))

    def test_a_type_that_is_not_known_yet_fits(self) -> None:
        self._verify(_table(_COUNTS, key_schema="", value_schema=""))


class TestPartitioning:
    """``key_by(…, partitioned=…)`` that another start changes."""

    @staticmethod
    def _changed(*, had_topic: bool, has_topic: bool) -> tuple[CheckpointRecord, JobPlan]:
        """The function has another id after the change, and the same name."""
        before = _record(_OLD, _table(_COUNTS))
        (region,) = before.regions
        assert region.keyed_state is not None
        keyed = replace(region.keyed_state, max_parallelism=128 if had_topic else 0)
        now = _graph("kafka-orders" if had_topic == has_topic else "topic-of-orders")
        plan = _plan(now, _table(now[1].operator_id))
        upstream = ("kafka-orders-writer",) if has_topic else ()
        plan = replace(plan, regions=(replace(plan.regions[0], upstream=upstream),))
        return replace(before, regions=(replace(region, keyed_state=keyed),)), plan

    @pytest.mark.parametrize("had_topic", [False, True])
    def test_a_change_is_refused_at_a_start_and_at_a_restore(self, had_topic: bool) -> None:
        """A restore would take the function, leave its state where no row of a key comes, and say
        nothing."""
        record, plan = self._changed(had_topic=had_topic, has_topic=not had_topic)
        for refuse in (
            lambda: verify_same_job(record, plan, ["out"]),
            lambda: translate(record, plan, RestoreRules()),
        ):
            with pytest.raises(WrongJobError, match="other partitions than its rows") as caught:
                refuse()
            assert caught.value.args[1]["function"] == "counts"

    @pytest.mark.parametrize("is_topic", [False, True])
    def test_what_stays_fits(self, is_topic: bool) -> None:
        verify_partitioning(*self._changed(had_topic=is_topic, has_topic=is_topic))


def _translated(
    before: CheckpointRecord, plan: JobPlan, **rules: object
) -> tuple[Translation, KeyedState | None]:
    found = translate(before, plan, RestoreRules(**rules))  # type: ignore[arg-type]
    return found, found.record.regions[0].keyed_state


class TestAnotherJob:
    """A restore from a savepoint: tables follow their operators."""

    def test_an_operator_takes_its_tables_by_name_and_keeps_their_numbers(self) -> None:
        """Its id is another one, since its source has another uid."""
        nodes = build_graph(
            [
                OperatorSpec(kind="source", name="kafka-orders"),
                OperatorSpec(kind="aggregate", name="counts", upstream=(0,)),
                OperatorSpec(kind="sink", name="out", upstream=(1,)),
            ]
        )
        assert nodes[1].operator_id != _COUNTS
        _, keyed = _translated(
            _record(_OLD, _table(_COUNTS)), _plan(nodes, _table(nodes[1].operator_id))
        )
        assert keyed is not None
        assert keyed.tables == (_table(nodes[1].operator_id),)
        assert [each.key for each in keyed.splits] == [
            (nodes[0].operator_id, "input", partition) for partition in (0, 1)
        ]

    def test_an_operator_takes_its_tables_by_uid(self) -> None:
        old, new = _graph(uid="by-account"), _graph(name="totals", uid="by-account")
        _, keyed = _translated(
            _record(old, _table(old[1].operator_id)), _plan(new, _table(new[1].operator_id))
        )
        assert keyed is not None
        assert keyed.tables[0].operator_id == new[1].operator_id

    def test_splits_of_a_renamed_topic_take_their_state_along(self) -> None:
        _, keyed = _translated(
            _record(_OLD, _table(_COUNTS)),
            _plan(_graph("kafka-sales"), _table(_COUNTS)),
            topic_map={"input": "sales"},
        )
        assert keyed is not None
        assert [each.topic for each in keyed.splits] == ["sales", "sales"]
        assert [len(each.parts) for each in keyed.splits] == [2, 0]

    def test_a_state_without_a_function_is_refused_and_named(self) -> None:
        new = _graph(name="other")
        with pytest.raises(WrongJobError, match=r"keyed state 'totals' of aggregate 'counts'"):
            _translated(_record(_OLD, _table(_COUNTS)), _plan(new, _table(new[1].operator_id)))

    def test_a_state_that_is_left_out_gives_its_number_to_no_other_one(self) -> None:
        """Its entries are in the files: another table of that number would show them."""
        before = _record(_OLD, _table(_COUNTS), _table(_COUNTS, "old", number=8))
        found, keyed = _translated(
            before, _plan(_OLD, _table(_COUNTS)), allow_non_restored_state=True
        )
        assert found.dropped == (f"keyed state 'old' of aggregate 'counts' ({_COUNTS})",)
        assert keyed is not None
        assert [(each.number, each.operator_id) for each in keyed.tables] == [
            (7, _COUNTS),
            (8, ""),
        ]

    def test_without_any_taker_there_is_no_state(self) -> None:
        new = _graph(name="other")
        found, keyed = _translated(
            _record(_OLD, _table(_COUNTS)),
            _plan(new, _table(new[1].operator_id)),
            allow_non_restored_state=True,
        )
        assert keyed is None
        assert len(found.dropped) == 1

    def test_operators_of_other_kinds_do_not_match(self) -> None:
        new = _graph(kind="process")
        with pytest.raises(WrongJobError, match="keyed state 'totals'"):
            _translated(_record(_OLD, _table(_COUNTS)), _plan(new, _table(new[1].operator_id)))

    def test_a_name_of_two_operators_is_ambiguous(self) -> None:
        specs = [
            OperatorSpec(kind="source", name="kafka-orders", uid="orders-2"),
            OperatorSpec(kind="aggregate", name="counts", upstream=(0,), uid="a"),
            OperatorSpec(kind="aggregate", name="counts", upstream=(1,), uid="b"),
            OperatorSpec(kind="sink", name="out", upstream=(2,)),
        ]
        new = build_graph(specs)
        with pytest.raises(ConfigError, match="several operators have the name"):
            _translated(_record(_OLD, _table(_COUNTS)), _plan((new[0], new[1], new[2])))


class TestFiles:
    """The start of a restored job has its own copies of the files, and names no others."""

    @staticmethod
    def _request(record: CheckpointRecord, copied: dict[str, str]) -> RestoreRequest:
        def copy(_: Savepoint, paths: Mapping[FileReference, str]) -> Iterator[None]:
            for file, path in paths.items():
                copied[file.path] = path
                yield

        saved = Savepoint(uri="file:///one", fs=FakeFileSystem(Disk()), record=record)
        return RestoreRequest(uri="file:///one", open=lambda: saved, copy_keyed=copy)

    @pytest.mark.parametrize("regions", [1, 2])
    def test_files_are_copied_once_and_named_by_the_regions_that_need_them(
        self, regions: int
    ) -> None:
        job, copied = Job(), dict[str, str]()
        nodes = (
            replace(_OLD[0], operator_id="source"),
            *_OLD[1:2],
            replace(_OLD[2], operator_id="sink"),
        )
        job.source.ends[1] = 100
        request = self._request(_record(nodes, _table(_COUNTS)), copied)
        found = job.start(plan=_plan(nodes, _table(_COUNTS), regions=regions), restore_from=request)
        assert copied == {
            f"state/r0/{name}": f"state/restored-new/r0/{name}"
            for name in ("5-7-40-0a1b2c3d.merged", "5-41-4e5f6071.changes")
        }
        named = {file.path for file in found.record.keyed_files}
        assert named == set(copied.values())
        splits = [
            each.key
            for region in found.record.regions
            if region.keyed_state is not None
            for each in region.keyed_state.splits
        ]
        assert sorted(splits) == [("source", "input", 0), ("source", "input", 1)]

    @pytest.mark.parametrize("error", [ConfigError, WrongJobError])
    def test_a_state_that_does_not_fit_is_refused_before_a_file_is_copied(
        self, error: type[StreamError]
    ) -> None:
        job, copied = Job(), dict[str, str]()
        nodes = (
            replace(_OLD[0], operator_id="source"),
            *_OLD[1:2],
            replace(_OLD[2], operator_id="sink"),
        )
        job.source.ends[1] = 100
        other = schema_to_json(pa.schema([("count", pa.string())]))
        changes = {"kind": "list"} if error is WrongJobError else {"value_schema": other}
        plan = _plan(nodes, _table(_COUNTS, **changes))
        with pytest.raises(error, match="than in the checkpoint"):
            job.start(
                plan=plan, restore_from=self._request(_record(nodes, _table(_COUNTS)), copied)
            )
        assert copied == {}
        assert job.store.slots() == []
