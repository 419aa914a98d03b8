"""Spark's offset log with anything in it: a barrier that is whole, or an error of ours."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.runtime.errors import DamagedCheckpointError, StreamError
from sluice.runtime.model import offsets
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.spark.microbatch.query_logs import LoggedBatch, PlannedFiles, read_offset
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import keyed_states
from tests.kit.keyed_parts import state_at_ends
from tests.kit.mutations import json_texts, json_values, mutated_bytes, mutated_json

_SPLIT = SplitRange(
    source_id="s",
    topic="a-b",
    topic_id="i",
    partition=3,
    start_offset=5,
    end_offset=9,
    leader_epoch=2,
)
_BARRIER = Barrier(
    checkpoint_id=4, region="main", attempt_id=1, splits=(_SPLIT,), publishes_all=True
)
_KEYED = replace(
    _BARRIER,
    watermark_ms=7,
    time_ms=9,
    is_end=True,
    new_state=state_at_ends([_SPLIT]),
)
_WRITTEN: dict[str, Any] = offsets.encode(_BARRIER)
_ANYTHING = json_values | mutated_json(_WRITTEN) | mutated_json(offsets.encode(_KEYED))


@given(found=_ANYTHING)
@example(found=_WRITTEN)
@example(found={**_WRITTEN, "splits": []})
@example(found={**_WRITTEN, "details": []})
@example(found={**_WRITTEN, "checkpoint": float("inf")})
@example(found={**_WRITTEN, "checkpoint": "4"})
@example(found={**_WRITTEN, "format": 0})
@example(found={**_WRITTEN, "splits": {"a-b-3": [5.5, 9]}})
@example(found={**_WRITTEN, "splits": {"a-b-3": [True, 9]}})
@example(found={**_WRITTEN, "splits": {"a-b-03": [5, 9]}})
def test_an_offset_is_a_barrier_that_is_written_as_it_was_read(found: Any) -> None:
    """So nothing that was read was guessed: no number that is text, half, or a truth value."""
    try:
        barrier = offsets.decode(found)
    except StreamError:
        return
    again = offsets.encode(barrier, initial=offsets.is_initial(found))
    assert {name: found.get(name) for name in ("format", "checkpoint", "region", "splits")} == {
        name: again[name] for name in ("format", "checkpoint", "region", "splits")
    }
    assert {type(n) for split in found["splits"].values() for n in split} <= {int}


@given(state=keyed_states(), watermark_ms=st.none() | st.integers(), is_end=st.booleans())
def test_state_with_output_an_offset_has_the_state_that_its_batch_begins_with(
    state: KeyedState, watermark_ms: int | None, is_end: bool
) -> None:
    barrier = replace(_KEYED, new_state=state, watermark_ms=watermark_ms, is_end=is_end)
    assert offsets.decode(json.loads(json.dumps(offsets.encode(barrier)))) == barrier


@pytest.mark.parametrize("flag", ["initial", "publish"])
@pytest.mark.parametrize("value", ["false", 0, 1, None, [], "yes"])
def test_a_flag_is_true_or_false(flag: str, value: object) -> None:
    """``"initial": "false"`` taken for a starting position would read nothing: records lost."""
    found = {**_WRITTEN, flag: value}
    assert not offsets.is_initial(found)
    with pytest.raises(DamagedCheckpointError):
        offsets.decode(found)


_LOGS = st.one_of(
    st.binary(max_size=60),
    mutated_bytes(b"v2\n{}\nsource-0:" + json.dumps(_WRITTEN).encode() + b"\n"),
    json_texts.map(lambda text: f"v2\n{{}}\nsource-0:{text}\n".encode()),
)


@given(content=_LOGS)
@example(content=b"v2\n{}\nsource-0:{")
@example(content=b"v2\n{}\nsource-0:[]")
@example(content=b"v2\n\xff\nsource-0:{}")
@example(content=b"v2\n{}\nsource-0:" + b"[" * 100_000)
def test_sparks_offset_log_is_read_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """It is Spark's file: a power cut, or a hand, may have left anything there."""
    fs = LocalFileSystem(tmp_path_factory.getbasetemp() / "offset-log")
    fs.replace("offsets/1", content)
    with contextlib.suppress(StreamError):
        offsets.decode(read_offset(fs, ".", 1, "source-0"))
    before = LoggedBatch.read(fs, 0, planned=None)
    for split in LoggedBatch.read(fs, 1, planned=PlannedFiles(fs)).ranges_since(before):
        assert split.start_offset <= split.end_offset
