"""Watermarks through a repartition topic: no row that the reader has not read is before one."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.region.topic_time import TopicTime
from sluice.runtime.model.splits import SplitRange

PARTITIONS = 2


@dataclass
class Writer:
    """A region that writes: its open rows, and the watermark of its decided epochs."""

    now_ms: int = 0
    decided_ms: int | None = None
    open_from: dict[int, int] = field(default_factory=dict)  # first offset by partition


def split(partition: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="t",
        topic_id="",
        partition=partition,
        start_offset=0,
        end_offset=end,
    )


@given(st.data())
def test_every_unread_row_is_at_or_after_the_watermark_of_its_split(data: st.DataObject) -> None:
    """Writers decide their epochs at different times, so that open rows hide decided ones."""
    writers = [Writer(), Writer()]
    logs: list[list[int]] = [[] for _ in range(PARTITIONS)]  # times of rows, by offset
    read = [0] * PARTITIONS
    marks: list[int | None] = [None] * PARTITIONS
    time = TopicTime({"s": ("a", "b")})
    for _ in range(data.draw(st.integers(1, 60))):
        step = data.draw(st.sampled_from(["write", "decide", "poll", "read"]))
        writer = data.draw(st.sampled_from(writers))
        partition = data.draw(st.integers(0, PARTITIONS - 1))
        if step == "write":
            writer.now_ms += data.draw(st.integers(0, 3))
            writer.open_from.setdefault(partition, len(logs[partition]))
            logs[partition].append(writer.now_ms)
        elif step == "decide":
            writer.decided_ms, writer.open_from = writer.now_ms, {}
        elif step == "poll":
            known = [each.decided_ms for each in writers]
            if None not in known:
                ends = {split(p, 0).key: len(log) for p, log in enumerate(logs)}
                time.note_ends(ends, min(ms for ms in known if ms is not None))
        else:
            stable = min(
                (each.open_from[partition] for each in writers if partition in each.open_from),
                default=len(logs[partition]),
            )
            read[partition] = data.draw(st.integers(read[partition], max(stable, read[partition])))
        for p, log in enumerate(logs):
            mark = time.marked(split(p, read[p])).watermark_ms
            assert mark is None or all(ms >= mark for ms in log[read[p] :])
            before = marks[p]
            assert before is None or (mark is not None and mark >= before), "never back"
            marks[p] = mark


def test_a_split_that_is_read_to_the_end_gets_the_writers_watermark() -> None:
    time = TopicTime({"s": ("a",)})
    time.note_ends({split(0, 0).key: 10}, 500)
    assert time.marked(split(0, 9)).watermark_ms is None
    assert time.marked(split(0, 10)).watermark_ms == 500
    other = SplitRange(
        source_id="other", topic="t", topic_id="", partition=0, start_offset=0, end_offset=10
    )
    assert time.marked(other) == other
