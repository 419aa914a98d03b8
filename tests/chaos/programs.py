"""The programs that are killed: how to start each, and what its output must be."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checker import HistoryVerdict, Record
from tests.chaos.published_files import PublishedFiles
from tests.kit.kafka.topic_histories import read_history
from tests.kit.key_counts import KeyCountVerdict, check_key_counts, whole_number
from tests.kit.memory_checker import check, expect, history_of
from tests.kit.window_counts import WindowVerdict, check_windows

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersVerdict:
    """Every record of a key has its number among them, once and in order.

    Attributes:
        counts: the verdict on the last number of each key.
        skipped: numbers that do not follow the one before them.
    """

    counts: KeyCountVerdict
    skipped: list[str]

    @property
    def is_clean(self) -> bool:
        """As expected."""
        return self.counts.is_clean and not self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVerdict:
    """What at-least-once promises: everything is there, and nothing foreign; perhaps twice."""

    found: HistoryVerdict

    @property
    def is_clean(self) -> bool:
        """Something was there, and nothing is lost."""
        return not (self.found.is_empty or self.found.lost or self.found.unexpected)


_WINDOW_MS = 1000
_DELAY_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Where a run reads and writes; ``files``: the directory, for a program that writes one."""

    connection: KafkaConnection
    source: str
    output: str
    files: PublishedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A program under test.

    Attributes:
        name: for test ids and messages.
        script: takes the command line of the examples.
        judge: verdict on the finished run.
        writes_files: it takes ``--path``, too.
        writes_topic: it takes ``--output``.
        environment: of each of its starts.
        holds_back: what it is ended with may have to wait for a later run: files, marks.
    """

    name: str
    script: Path
    judge: Callable[[Topics], "Verdict"]
    writes_files: bool = False
    writes_topic: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    holds_back: bool = False


def exclaim(topics: Topics) -> Callable[[Record], Iterable[Record]]:
    """What the copies do to a record: ``!`` after the value, everything else kept."""

    def mapping(record: Record) -> Iterable[Record]:
        value = None if record.value is None else record.value + b"!"
        yield record._replace(topic=topics.output, value=value)

    return mapping


def _judge_copy(topics: Topics) -> HistoryVerdict:
    source = read_records(topics.connection, topics.source)
    found = read_history(topics.connection, topics.output)
    return check(expect(source, exclaim(topics)), found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesVerdict:
    """Everything once, and in the order of its partition within and over files."""

    found: HistoryVerdict
    out_of_order: list[str]

    @property
    def is_clean(self) -> bool:
        """As expected."""
        return self.found.is_clean and not self.out_of_order


@dataclass(frozen=True, slots=True, kw_only=True)
class BothVerdict:
    """On two sinks of one decision."""

    topic: HistoryVerdict
    files: "FilesVerdict"

    @property
    def is_clean(self) -> bool:
        """Each holds everything once."""
        return self.topic.is_clean and self.files.is_clean


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksVerdict:
    """On both sinks, and what readers were reported the files."""

    both: BothVerdict
    unmarked: list[str]

    @property
    def is_clean(self) -> bool:
        """Each holds everything once, and each partition is marked after its newest file."""
        return self.both.is_clean and not self.unmarked


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """On a table, and on the sinks that share its decisions.

    Attributes:
        table: the rows of the job in the table.
        topic, files: None: the program does not write them.
        differences: rows that a reader finds in one of topic and table only.
    """

    table: HistoryVerdict
    topic: HistoryVerdict | None = None
    files: FilesVerdict | None = None
    differences: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Each holds everything once, and they agree."""
        written = [each for each in (self.table, self.topic, self.files) if each is not None]
        return all(each.is_clean for each in written) and not self.differences


def judge_table(topics: Topics, rows: Iterable[Record]) -> TableVerdict:
    """``rows``: of the table, by partition and offset."""
    return TableVerdict(table=_judge_found(topics, rows))


def judge_table_and_topic(
    topics: Topics, rows: Sequence[Record], *, files: bool = False
) -> TableVerdict:
    """The same, beside a topic, or a topic and files."""
    in_topic = Counter(map(_content, read_records(topics.connection, topics.output)))
    in_table = Counter(map(_content, rows))
    differences = (in_topic - in_table) + (in_table - in_topic)
    return TableVerdict(
        table=_judge_found(topics, rows),
        topic=_judge_copy(topics),
        files=_judge_files(topics) if files else None,
        differences=[str(each) for each in list(differences)[:20]],
    )


def _content(record: Record) -> tuple[int, bytes | None, bytes | None]:
    return record.partition, record.key, record.value


def _judge_both(topics: Topics) -> BothVerdict:
    return BothVerdict(topic=_judge_copy(topics), files=_judge_files(topics))


def _judge_both_rows(topics: Topics) -> BothVerdict:
    rows = FilesVerdict(found=_judge_rows(topics), out_of_order=[])
    return BothVerdict(topic=_judge_copy(topics), files=rows)


def _judge_marks(topics: Topics) -> MarksVerdict:
    return MarksVerdict(both=_judge_both_rows(topics), unmarked=topics.files.unmarked())


def _judge_files(topics: Topics) -> FilesVerdict:
    return FilesVerdict(found=_judge_rows(topics), out_of_order=topics.files.out_of_order())


def _judge_rows(topics: Topics) -> HistoryVerdict:
    """Sorted, so of their order it says nothing: of files that are merged or parted none is
    promised, for Spark reads and writes their rows in any; of others `_judge_files` looks at it."""

    return _judge_found(topics, topics.files.records(topic=topics.output))


def _judge_found(topics: Topics, rows: Iterable[Record]) -> HistoryVerdict:
    """Sorted rows, which have no headers."""

    def mapping(record: Record) -> Iterable[Record]:
        for made in exclaim(topics)(record):
            yield made._replace(headers=())

    source = read_records(topics.connection, topics.source)
    return check(expect(source, mapping), history_of(rows))


def _judge_losses(topics: Topics) -> LossVerdict:
    return LossVerdict(found=_judge_copy(topics))


def _judge_two_regions(topics: Topics) -> HistoryVerdict:
    copy = f"{topics.output}-copy"

    def mapping(record: Record) -> Iterable[Record]:
        for made in exclaim(topics)(record):
            yield made
            if made.partition % 2 == 0:
                yield made._replace(topic=copy)

    source = read_records(topics.connection, topics.source)
    found = (read_records(topics.connection, topic) for topic in (topics.output, copy))
    return check(expect(source, mapping), history_of(itertools.chain.from_iterable(found)))


def _judge_counts(topics: Topics) -> KeyCountVerdict:
    keys = (record.key for record in read_records(topics.connection, topics.source))
    # Several partitions arrive mixed, but all emissions of a key lie in one of them.
    return check_key_counts(keys, read_records(topics.connection, topics.output))


def _judge_numbers(topics: Topics) -> NumbersVerdict:
    last: Counter[bytes | None] = Counter()
    skipped = []
    for record in read_records(topics.connection, topics.output):
        last[record.key] += 1
        if record.value != b"%d" % last[record.key]:
            skipped.append(f"{record.key!r}: {record.value!r} instead of {last[record.key]}")
            last[record.key] = whole_number(record.value) or last[record.key]
    return NumbersVerdict(counts=_judge_counts(topics), skipped=skipped[:20])


def _judge_windows(topics: Topics) -> WindowVerdict:
    source = read_records(topics.connection, topics.source)
    timestamps_ms = (record.timestamp_ms or 0 for record in source)
    found = read_records(topics.connection, topics.output)
    return check_windows(timestamps_ms, found, window_ms=_WINDOW_MS, delay_ms=_DELAY_MS)


Verdict = (
    HistoryVerdict
    | KeyCountVerdict
    | NumbersVerdict
    | WindowVerdict
    | LossVerdict
    | FilesVerdict
    | BothVerdict
    | MarksVerdict
    | TableVerdict
)

COPY = Subject(name="copy", script=_ROOT / "examples" / "kafka_to_kafka.py", judge=_judge_copy)
COPY_IN_BATCHES = Subject(
    name="copy-in-batches", script=Path(__file__).with_name("mortal_copy.py"), judge=_judge_copy
)
DROP_IN = Subject(name="drop-in", script=_ROOT / "examples" / "drop_in.py", judge=_judge_copy)
FRAMES_DROP_IN = Subject(
    name="frames-drop-in", script=Path(__file__).with_name("frames_drop_in.py"), judge=_judge_copy
)
DROP_IN_COUNTS = Subject(
    name="drop-in-counts", script=_ROOT / "examples" / "drop_in_counts.py", judge=_judge_counts
)
COUNT = Subject(name="count", script=_ROOT / "examples" / "count_per_key.py", judge=_judge_counts)
KEYED_COUNTS = Subject(
    name="keyed-counts", script=_ROOT / "examples" / "keyed_counts.py", judge=_judge_counts
)
STATE_NUMBERS = Subject(
    name="state-numbers", script=Path(__file__).with_name("mortal_keyed.py"), judge=_judge_numbers
)
STATE_COUNTS = replace(
    STATE_NUMBERS, name="state-counts", judge=_judge_counts, environment={"WORK": "count"}
)
WINDOWED = Subject(
    name="windowed", script=Path(__file__).with_name("windowed.py"), judge=_judge_windows
)
WINDOWED_DROP_IN = Subject(
    name="windowed-drop-in",
    script=Path(__file__).with_name("windowed_drop_in.py"),
    judge=_judge_windows,
)
REGIONAL = Subject(
    name="regional copy", script=_ROOT / "examples" / "regional.py", judge=_judge_copy
)
REGIONAL_BOTH = Subject(
    name="regional copy into topic and files",
    script=_ROOT / "examples" / "regional.py",
    judge=_judge_both,
    writes_files=True,
)
MORTAL_COPY = Subject(
    name="mortal-copy", script=Path(__file__).with_name("mortal_copy.py"), judge=_judge_copy
)
MORTAL_FILES = Subject(
    name="mortal-copy",
    script=Path(__file__).with_name("mortal_copy.py"),
    judge=_judge_both,
    writes_files=True,
)
MORTAL_ROLLING = replace(
    MORTAL_FILES, judge=_judge_both_rows, environment={"ROLL": "yes"}, holds_back=True
)
MARKED_FILES = replace(
    MORTAL_FILES, judge=_judge_marks, environment={"MARKS": "yes"}, holds_back=True
)
MORTAL_REGIONS = Subject(
    name="mortal-regions",
    script=Path(__file__).with_name("mortal_regions.py"),
    judge=_judge_both,
    writes_files=True,
)
RESTLESS_REGIONS = Subject(
    name="restless-regions",
    script=Path(__file__).with_name("restless_regions.py"),
    judge=_judge_copy,
)
AT_LEAST_ONCE = Subject(
    name="at-least-once", script=Path(__file__).with_name("mortal_copy.py"), judge=_judge_losses
)
SECURE_COPY = Subject(
    name="secure-copy", script=Path(__file__).with_name("secure_copy.py"), judge=_judge_copy
)
SECURE_DROP_IN = Subject(
    name="secure-drop-in", script=Path(__file__).with_name("secure_drop_in.py"), judge=_judge_copy
)
TWO_REGIONS = Subject(
    name="two-regions", script=Path(__file__).with_name("two_regions.py"), judge=_judge_two_regions
)
BOTH = Subject(
    name="both",
    script=_ROOT / "examples" / "kafka_to_both.py",
    judge=_judge_both,
    writes_files=True,
)
FILES_DROP_IN = Subject(
    name="files-drop-in",
    script=Path(__file__).with_name("files_drop_in.py"),
    judge=_judge_files,
    writes_files=True,
)
ROLLING_COPY = Subject(
    name="rolling-copy",
    script=Path(__file__).with_name("rolling_copy.py"),
    judge=_judge_rows,
    writes_files=True,
)
FILES_COPY = Subject(
    name="files-copy",
    script=_ROOT / "examples" / "kafka_to_hdfs.py",
    judge=_judge_files,
    writes_files=True,
    writes_topic=False,
)
MARKED_ROLLS = Subject(
    name="marked-rolls",
    script=Path(__file__).with_name("marked_rolls.py"),
    judge=_judge_rows,
    writes_files=True,
)
STAND_IN = Subject(
    name="stand-in", script=Path(__file__).with_name("stand_in.py"), judge=_judge_copy
)
