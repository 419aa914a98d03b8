"""The verdicts of rounds on broken outputs, and on the records that a reader saw meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.runtime.checker import Payload, Record
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos import programs
from tests.chaos.programs import Topics, exclaim
from tests.chaos.published_files import PublishedFiles
from tests.environment.verdict import RoundVerdict, judge_all, with_sight
from tests.kit.memory_checker import history_of

_SENT = list(
    Payload(topic="in", run="bed", partitions=2, null_value_every=0, empty_value_every=0).records(
        40
    )
)
_FILE, _LATER = "files/part-000000000003-a", "files/part-000000000004-b"

Records = list[Record]


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    """Their names; nothing is read."""
    files = PublishedFiles(fs=open_file_system(str(tmp_path)), name="files")
    connection = KafkaConnection(bootstrap_servers="none:1")
    return Topics(connection=connection, source="in", output="out", files=files)


def in_place(records: Sequence[Record]) -> Records:
    """As a topic holds them: each behind the last one of its partition."""
    ends: dict[int, int] = {}
    placed = []
    for record in records:
        ends[record.partition] = ends.get(record.partition, -1) + 1
        placed.append(record._replace(offset=ends[record.partition]))
    return placed


def written(topics: Topics, records: Sequence[Record]) -> Records:
    """As the job writes them into the topic, behind one another."""
    return in_place([copy for record in records for copy in exclaim(topics)(record)])


def rows(topics: Topics, records: Sequence[Record]) -> Records:
    """As rows of a file."""
    return [copy._replace(headers=()) for record in records for copy in exclaim(topics)(record)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round without losses has left: topics in a broker's place, files that lie there."""

    topics: Topics
    held: dict[str, Records]
    directory: Path

    def write(self, *, output: Sequence[Record], files: Mapping[str, Sequence[Record]]) -> None:
        """Into the topic, behind one another, and into files, in this order."""
        self.held["out"] = in_place(output)
        for path, records in files.items():
            (self.directory / path).parent.mkdir(exist_ok=True)
            columns = {
                name: [getattr(record, name) for record in records]
                for name in ("key", "value", "partition", "offset")
            }
            pq.write_table(pa.table(columns), self.directory / path)

    def judge(self, *, writes_files: bool = True) -> RoundVerdict:
        """As `tests.environment.pipeline` does."""
        return judge_all(self.topics, sent=len(_SENT), writes_files=writes_files)


@pytest.fixture
def left(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Round:
    """Everything in both outputs; in two files, of two checkpoints."""
    held = {"in": in_place(_SENT)}
    monkeypatch.setattr(programs, "read_records", lambda _, topic: iter(held[topic]))
    monkeypatch.setattr(programs, "read_history", lambda _, topic: history_of(held[topic]))
    made = Round(topics=topics, held=held, directory=tmp_path)
    copies = rows(topics, held["in"])
    made.write(output=written(topics, held["in"]), files={_FILE: copies[:24], _LATER: copies[24:]})
    return made


_BREAKS: list[tuple[str, Callable[[Records], Records]]] = [
    ("lost", lambda good: good[1:]),
    ("doubled", lambda good: [*good, good[0]]),
    ("reordered", lambda good: [good[2], good[1], good[0], *good[3:]]),
    ("foreign", lambda good: [*good, good[0]._replace(value=b"stray")]),
    ("foreign", lambda good: [good[0]._replace(value=b"other"), *good[1:]]),
    ("foreign", lambda good: [good[0]._replace(key=b"other"), *good[1:]]),
]
_BROKEN = pytest.mark.parametrize(
    ("name", "wrong"),
    _BREAKS,
    ids=["lost", "doubled", "reordered", "foreign", "another value", "another key"],
)


@pytest.mark.parametrize("writes_files", [False, True])
def test_a_round_of_which_all_is_there_is_clean(left: Round, writes_files: bool) -> None:
    """In one output or in two."""
    verdict = left.judge(writes_files=writes_files)
    assert (verdict.faults, verdict.records) == ((), len(_SENT))
    assert verdict.outputs == 1 + writes_files
    assert not any(verdict.counts.values())


@_BROKEN
@pytest.mark.parametrize("writes_files", [False, True])
def test_a_topic_that_is_broken_is_caught(
    left: Round, name: str, wrong: Callable[[Records], Records], writes_files: bool
) -> None:
    """Whether files stand beside it or not; they hold everything."""
    left.held["out"] = in_place(wrong(left.held["out"]))
    verdict = left.judge(writes_files=writes_files)
    assert verdict.faults[0].startswith("topic: ")
    assert not any(fault.startswith("files: ") for fault in verdict.faults)
    assert verdict.counts[name] == 1


@_BROKEN
def test_files_that_are_broken_are_caught(
    left: Round, name: str, wrong: Callable[[Records], Records]
) -> None:
    """The topic beside them holds everything. Rows out of order are found by where they lie."""
    copies = rows(left.topics, left.held["in"])
    left.write(output=left.held["out"], files={_FILE: wrong(copies[:24]), _LATER: copies[24:]})
    verdict = left.judge()
    assert verdict.counts[name] >= 1
    told = "behind" if name == "reordered" else "files: "
    assert any(told in fault for fault in verdict.faults)
    assert not any(fault.startswith("topic: ") for fault in verdict.faults)


def test_files_of_a_later_checkpoint_with_earlier_rows_are_caught(left: Round) -> None:
    """Each file by itself is in order."""
    copies = rows(left.topics, left.held["in"])
    left.write(output=left.held["out"], files={_FILE: copies[24:], _LATER: copies[:24]})
    verdict = left.judge()
    assert verdict.counts["reordered"] == len(verdict.faults) == 2
    assert all("behind" in fault for fault in verdict.faults)


def test_an_input_that_is_short_of_what_was_sent_is_no_clean_round(left: Round) -> None:
    """Nor one with more: the outputs agree with it, and with nobody's count."""
    for sent in (len(_SENT) - 1, len(_SENT) + 1):
        verdict = judge_all(left.topics, sent=sent, writes_files=True)
        assert verdict.faults == (f"{sent} records were sent, {len(_SENT)} are there",)


_CLEAN = RoundVerdict(records=40, outputs=1)


@pytest.mark.parametrize(
    ("wrong", "torn"),
    [
        pytest.param(lambda good: good[1:], 1, id="a record appears behind others"),
        pytest.param(lambda good: [*good[:10], good[0], *good[10:]], 1, id="a double vanishes"),
        pytest.param(lambda good: [good[2], good[1], good[0], *good[3:]], 1, id="order changes"),
        pytest.param(lambda good: [good[0]._replace(value=b"x"), *good[1:]], 1, id="another value"),
        pytest.param(lambda good: [*good, good[0], good[1]], 2, id="more was seen than is there"),
        pytest.param(lambda _: [], 0, id="nothing was seen"),
    ],
)
def test_what_a_reader_saw_must_be_a_prefix(
    topics: Topics, wrong: Callable[[Records], Records], torn: int
) -> None:
    """However clean the output is in the end."""
    final = written(topics, _SENT)
    verdict = with_sight(_CLEAN, history_of(in_place(wrong(final))), history_of(final))
    assert verdict.faults[0].startswith("a reader: ")
    assert verdict.counts == {"torn": torn}


def test_a_reader_that_saw_a_part_of_each_partition_saw_a_prefix(topics: Topics) -> None:
    """All of it, or less."""
    final = written(topics, _SENT)
    for seen in (final, final[:7]):
        verdict = with_sight(_CLEAN, history_of(seen), history_of(final))
        assert verdict.faults == ()
