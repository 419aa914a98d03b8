"""Checkpoint records for tests: a full one, small ones, and Hypothesis strategies of all."""

import hashlib
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    Redistribution,
    RegionRecord,
    RegionStatus,
    StateEntry,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import (
    KeyedState,
    SplitState,
    StatePart,
    StateTableInfo,
)

JOB_UID = "6f9619ff-8b86-4011-b42d-00c04fc964ff"


def committable(
    payload: bytes = b"\x00\x01\xfe\xff", *, kind: str = "kafka-transaction"
) -> StateEntry:
    """A committable of a sink."""
    return StateEntry(
        operator_id="0123456789abcdef0123456789abcdef",
        state_name="committables",
        kind=kind,
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=payload,
    )


def record(checkpoint_id: int = 1, **changes: Any) -> CheckpointRecord:
    """A decided record with one committable, as far as ``changes`` do not say otherwise."""
    made = CheckpointRecord(
        job_uid=JOB_UID,
        job_name="orders",
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        leader_session_id="first",
        run_attempt=1,
        regions=(
            RegionRecord(
                region="r0", attempt_id=0, batch_id=checkpoint_id, committables=(committable(),)
            ),
        ),
    )
    return replace(made, **changes)


def state_file(name: str, *, length_bytes: int = 900) -> FileReference:
    """A file of keyed state in region r0; its digest is that of its name."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return FileReference(path=f"state/r0/{name}", length_bytes=length_bytes, sha256=digest)


def keyed_state(*splits: SplitKey, operator_id: str = "b" * 32) -> KeyedState:
    """State of these splits in two files: a base with changes after it, then one part each, and
    none of the last split."""
    parts = (
        (
            StatePart(file=0, offset=0, length=700, is_base=True),
            StatePart(file=1, offset=0, length=2**33),
        ),
        *[(StatePart(file=1, offset=2**33 * each, length=9),) for each in range(1, len(splits))],
    )
    return KeyedState(
        max_parallelism=1024,
        partitions=len(splits),
        tables=(
            StateTableInfo(
                number=0,
                operator_id=operator_id,
                name="counts",
                kind="aggregate",
                key_schema='{"fields":[{"name":"account","type":"string"}]}',
                value_schema='{"fields":[{"name":"count","type":"int64"}]}',
            ),
            StateTableInfo(number=3, operator_id=operator_id, name="timers", kind="timers"),
        ),
        files=(state_file("5-7-40-0a1b2c3d.merged"), state_file("5-41-4e5f6071.changes")),
        splits=tuple(
            SplitState(source_id=source_id, topic=topic, partition=partition, parts=mine)
            for (source_id, topic, partition), mine in zip(
                splits, (*parts[: len(splits) - 1], ()), strict=True
            )
        ),
    )


def full_record() -> CheckpointRecord:
    """Every field of every value is set; what the golden file of the format version holds."""
    source, sink = "a" * 32, "b" * 32
    split = SplitRange(
        source_id=source,
        topic="orders",
        topic_id="5nZ0dQ8iQ4uVn6l2p1m3xg",
        partition=3,
        start_offset=10,
        end_offset=2**40,
        leader_epoch=7,
        leader_epoch_end=2**40 - 1,
        largest_timestamp_ms=1_700_000_000_123,
        watermark_ms=1_700_000_000_000,
        idle_since_ms=1_700_000_001_000,
        barrier_watermark_ms=1_700_000_000_000,
    )
    state = StateSnapshot(
        provider="org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        checkpoint_format_version=2,
        state_version=42,
        state_partitions=4,
        operators=((0, "stateStoreSave"), (1, "transformWithState")),
        state_schema='{"type":"struct"}',
        key_schema='{"type":"struct","fields":[]}',
        location="spark/r0/state/state",
        files=(
            FileReference(path="chk-000000000042/state/1.zip", length_bytes=9, sha256="0f" * 32),
        ),
    )
    count = StateEntry(
        operator_id=sink,
        state_name="counts",
        kind="running-count",
        version=3,
        redistribution=Redistribution.KEYED_RANGE,
        payload=bytes(range(256)),
    )
    keyed = keyed_state(split.key, (source, "orders", 11), (source, "clicks", 0), operator_id=sink)
    return CheckpointRecord(
        job_uid=JOB_UID,
        job_name="orders ü",
        checkpoint_id=42,
        kind=CheckpointKind.SAVEPOINT,
        verdict=Verdict.DECIDED,
        leader_session_id="1f0c9c1e-9d5e-4a3d-8f2a-6f5f0a7d1a11",
        run_attempt=3,
        restored_from=40,
        requested_by="user",
        reason="before the upgrade",
        created_at_ms=1_700_000_002_000,
        sluice_version="0.1.0",
        spark_version="4.3.0",
        cluster_ids=("kafka-a", "kafka-b"),
        settings={"bootstrap": "127.0.0.1:9092", "password": "***"},
        graph=(
            OperatorNode(
                operator_id=source, name="orders", kind="source", upstream=(), parallelism=4
            ),
            OperatorNode(
                operator_id=sink,
                name="out",
                kind="sink",
                upstream=(source,),
                parallelism=2,
                max_parallelism=128,
                uid="out-1",
            ),
        ),
        regions=(
            RegionRecord(
                region="r0",
                attempt_id=5,
                status=RegionStatus.COMPLETED,
                query_id="0d3b9c1e-9d5e-4a3d-8f2a-6f5f0a7d1a22",
                batch_id=41,
                splits=(split,),
                least_watermark_ms=1_700_000_000_000,
                offset_log_version=2,
                other_offsets_sha256="5" * 64,
                state=state,
                committables=(committable(), committable(b"two", kind="hdfs-file")),
                operator_states=(count,),
                keyed_state=keyed,
            ),
            RegionRecord(
                region="r1", attempt_id=4, status=RegionStatus.SKIPPED, snapshot_id=41, batch_id=7
            ),
        ),
        assignment=Assignment(
            version=3,
            regions={
                "r0": frozenset({split.key, (source, "orders", 11), (source, "clicks", 0)}),
                "r1": frozenset(),
            },
        ),
    )


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_long = st.integers(min_value=-(2**63), max_value=2**63 - 1)
_natural = st.integers(min_value=0, max_value=2**63 - 1)
_maybe = st.none() | _long

state_entries = st.builds(
    StateEntry,
    operator_id=_text,
    state_name=_text,
    kind=_text,
    version=_natural,
    redistribution=st.sampled_from(Redistribution),
    payload=st.binary(max_size=40),
)


@st.composite
def _splits(draw: st.DrawFn) -> SplitRange:
    start, end = sorted((draw(_natural), draw(_natural)))
    return SplitRange(
        source_id=draw(_text),
        topic=draw(_text),
        topic_id=draw(_text),
        partition=draw(_natural),
        start_offset=start,
        end_offset=end,
        leader_epoch=draw(_maybe),
        leader_epoch_end=draw(_maybe),
        largest_timestamp_ms=draw(_maybe),
        watermark_ms=draw(_maybe),
        idle_since_ms=draw(_maybe),
        barrier_watermark_ms=draw(_maybe),
    )


_path = st.lists(st.text("ab c_-", min_size=1, max_size=5), min_size=1, max_size=3).map("/".join)
_files = st.builds(
    FileReference,
    path=_path,
    length_bytes=_natural,
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
)
_states = st.builds(
    StateSnapshot,
    provider=_text,
    checkpoint_format_version=_long,
    state_version=_long,
    state_partitions=_long,
    operators=st.lists(st.tuples(_long, _text), max_size=2).map(tuple),
    state_schema=_text,
    key_schema=_text,
    location=_path,
    files=st.lists(_files, max_size=2).map(tuple),
)


@st.composite
def keyed_states(draw: st.DrawFn) -> KeyedState:
    """Any keyed state that the model allows."""
    files = draw(st.lists(_files, max_size=3, unique_by=lambda each: each.path))
    part = st.builds(
        StatePart, file=st.integers(0, len(files) - 1), offset=_natural, length=_natural
    )
    chains = st.lists(part, max_size=3) if files else st.just([])
    splits = []
    for source_id, topic, partition in draw(
        st.lists(st.tuples(_text, _text, _natural), max_size=4, unique=True)
    ):
        parts: list[StatePart] = draw(chains)
        has_base: bool = draw(st.booleans())
        if parts and has_base:
            parts[0] = replace(parts[0], is_base=True)
        splits.append(
            SplitState(source_id=source_id, topic=topic, partition=partition, parts=tuple(parts))
        )
    tables = st.builds(
        StateTableInfo,
        number=_long,
        operator_id=_text,
        name=_text,
        kind=_text,
        key_schema=_text,
        value_schema=_text,
    )
    return KeyedState(
        max_parallelism=draw(_natural),
        partitions=draw(_natural),
        tables=tuple(draw(st.lists(tables, max_size=2, unique_by=lambda each: each.number))),
        files=tuple(files),
        splits=tuple(splits),
    )


_regions = st.builds(
    RegionRecord,
    region=_text,
    attempt_id=_long,
    status=st.sampled_from(RegionStatus),
    snapshot_id=_maybe,
    query_id=_text,
    batch_id=_maybe,
    splits=st.lists(_splits(), max_size=3).map(tuple),
    least_watermark_ms=_maybe,
    offset_log_version=_long,
    other_offsets_sha256=_text,
    state=st.none() | _states,
    committables=st.lists(state_entries, max_size=3).map(tuple),
    operator_states=st.lists(state_entries, max_size=2).map(tuple),
    keyed_state=st.none() | keyed_states(),
)
_nodes = st.builds(
    OperatorNode,
    operator_id=_text,
    name=_text,
    kind=_text,
    upstream=st.lists(_text, max_size=2).map(tuple),
    parallelism=_long,
    max_parallelism=_long,
    uid=_text,
)


@st.composite
def _assignments(draw: st.DrawFn) -> Assignment:
    keys = draw(st.lists(st.tuples(_text, _text, _natural), max_size=6, unique=True))
    regions: dict[str, set[tuple[str, str, int]]] = {
        name: set() for name in draw(st.lists(_text, min_size=1, max_size=3, unique=True))
    }
    for key in keys:
        regions[draw(st.sampled_from(sorted(regions)))].add(key)
    return Assignment(
        version=draw(st.integers(1, 2**63 - 1)),
        regions={name: frozenset(mine) for name, mine in regions.items()},
    )


records = st.builds(
    CheckpointRecord,
    job_uid=_text,
    job_name=_text,
    checkpoint_id=_natural,
    kind=st.sampled_from(CheckpointKind),
    verdict=st.sampled_from(Verdict),
    leader_session_id=_text,
    run_attempt=_long,
    restored_from=_maybe,
    requested_by=_text,
    reason=_text,
    created_at_ms=_long,
    sluice_version=_text,
    spark_version=_text,
    cluster_ids=st.lists(_text, max_size=2).map(tuple),
    settings=st.dictionaries(_text, _text, max_size=3),
    graph=st.lists(_nodes, max_size=3).map(tuple),
    regions=st.lists(_regions, max_size=3).map(tuple),
    assignment=st.none() | _assignments(),
)
"""Any record that the model allows."""
