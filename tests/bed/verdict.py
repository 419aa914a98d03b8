"""What the outputs of a round hold against what was sent.

Where an unclean leader election has taken records from the input, Kafka has lost them, and whether
the job had read them before is chance. So each record that was sent is known by its origin, and
whatever is left of it in the input, or is in any output, must be in every output: once, in order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from connectors.kafka.history import read_history, read_records
from runtime.checker import History, Record, check, expect
from runtime.checker.payload import Origin, origin_of
from tests.chaos.feeder import Feeder
from tests.chaos.programs import BOTH, COPY, Topics, exclaim
from tests.chaos.published_files import out_of_order

__all__ = ["Found", "RoundVerdict", "compare", "judge_all", "judge_what_is_left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVerdict:
    """What the checker says of one round's output.

    Attributes:
        records: that must be in each output once.
        outputs: 1, or 2 with files.
        taken: from the input by Kafka, which had acknowledged them.
        taken_read: of those, what the job had read before; it is in each output once.
        faults: what is wrong, for people; empty: lost 0, doubled 0, reordered 0, foreign 0, and
            what a reader saw at any time was a prefix of what is there.
    """

    records: int
    outputs: int
    taken: int = 0
    taken_read: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a round has left.

    Attributes:
        source: what is still in the input.
        output: of the topic.
        files: the rows of each file, by its path; None: the job writes no files.
    """

    source: Sequence[Record]
    output: Sequence[Record]
    files: Mapping[str, Sequence[Record]] | None = None


def judge_all(topics: Topics, *, sent: int, writes_files: bool) -> RoundVerdict:
    """Every record that was sent must be there."""
    verdict = (BOTH if writes_files else COPY).judge(topics)
    faults = [] if verdict.is_clean else [str(verdict)]
    there = len(read_history(topics.connection, topics.output))
    if there != sent:
        faults.append(f"{sent} records were sent, {there} are there")
    return RoundVerdict(records=sent, outputs=1 + writes_files, faults=tuple(faults))


def judge_what_is_left(topics: Topics, feeder: Feeder, *, writes_files: bool) -> RoundVerdict:
    """Every record that was sent must be there, unless Kafka has taken it and nobody has read it.

    Args:
        feeder: stopped; each of its records says its origin in its value.
    """
    paths = topics.files.lengths() if writes_files else ()
    found = Found(
        source=list(read_records(topics.connection, topics.source)),
        output=list(read_records(topics.connection, topics.output)),
        files={path: _rows_of(topics, path) for path in paths} if writes_files else None,
    )
    sent = list(feeder.payload.records(feeder.sent))
    return compare(topics, sent, found, unacknowledged=feeder.unacknowledged)


def compare(
    topics: Topics, sent: Sequence[Record], found: Found, *, unacknowledged: Sequence[bytes] = ()
) -> RoundVerdict:
    """The verdict. Pure.

    Args:
        topics: their names.
        sent: in each partition in order.
        found: at the end.
        unacknowledged: values of records that may be in the input or not.
    """
    rows = [row for file in (found.files or {}).values() for row in file]
    there = _origins(found.source)
    read = {*_origins(found.output), *_origins(rows)}
    left = read.union(there)
    wanted = [record for record in sent if origin_of(record) in left]
    verdict = check(expect(wanted, exclaim(topics)), History.of(found.output))
    faults = [] if verdict.is_clean else [f"topic: {verdict}"]
    if len(there) != len(set(there)):
        faults.append("the input itself holds a record twice")
    if found.files is not None:
        faults += _faults_of_files(topics, wanted, found.files)
    unknown = set(unacknowledged)
    taken = {origin_of(record) for record in sent if record.value not in unknown} - set(there)
    return RoundVerdict(
        records=len(wanted),
        outputs=1 if found.files is None else 2,
        taken=len(taken),
        taken_read=len(taken & read),
        faults=tuple(faults),
    )


def _faults_of_files(
    topics: Topics, wanted: Sequence[Record], files: Mapping[str, Sequence[Record]]
) -> list[str]:
    """An offset of the input may have come twice by now, so a row's place is its sequence."""

    def mapping(record: Record) -> Iterable[Record]:
        for made in exclaim(topics)(record):
            yield made._replace(headers=())

    rows = [row for file in files.values() for row in file]
    in_order = sorted(rows, key=lambda row: (row.partition, row.offset))
    verdict = check(expect(wanted, mapping), History.of(in_order))
    faults = [] if verdict.is_clean else [f"files: {verdict}"]
    places = {path: [(row.partition, row.offset) for row in file] for path, file in files.items()}
    return faults + out_of_order(places)


def _rows_of(topics: Topics, path: str) -> list[Record]:
    """Each row of a file, at the sequence that it has in its partition."""
    found = []
    for row in topics.files.read(path).to_pylist():
        record = Record(topics.output, row["partition"], row["offset"], row["key"], row["value"])
        (origin,) = _origins([record])
        found.append(record._replace(offset=origin.sequence))
    return found


def _origins(records: Iterable[Record]) -> list[Origin]:
    found = []
    for record in records:
        origin = origin_of(record)
        assert origin is not None, f"a record that nobody has sent: {record}"
        found.append(origin)
    return found
