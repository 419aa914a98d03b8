"""What the outputs of a round hold against what was sent.

Where an unclean leader election has taken records from the input, Kafka has lost them, and whether
the job had read them before is chance. So each record that was sent is known by its origin, and
whatever is left of it in the input, or is in any output, must be in every output: once, in order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checker import History, HistoryVerdict, Record, check, check_prefix, expect
from sluice.runtime.checker.records.payload import Origin, origin_of
from tests.chaos.feeder import Feeder
from tests.chaos.programs import BOTH, COPY, BothVerdict, Topics, exclaim
from tests.chaos.published_files import out_of_order

__all__ = ["Found", "RoundVerdict", "compare", "judge_all", "judge_what_is_left", "with_sight"]


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
        counts: over all outputs, of records ``lost``, ``doubled``, ``reordered`` and ``foreign``
            (never sent, or with another content), and of partitions in which a reader saw what is
            not there (``torn``).
    """

    records: int
    outputs: int
    taken: int = 0
    taken_read: int = 0
    faults: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


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
    if isinstance(verdict, BothVerdict):
        outputs = {"topic": verdict.topic, "files": verdict.files.found}
        out_of_order = verdict.files.out_of_order
    else:
        assert isinstance(verdict, HistoryVerdict)
        outputs, out_of_order = {"topic": verdict}, []
    there = outputs["topic"].found
    miscounted = [] if there == sent else [f"{sent} records were sent, {there} are there"]
    return RoundVerdict(
        records=sent,
        outputs=len(outputs),
        faults=(*_told(outputs), *out_of_order, *miscounted),
        counts=_counts(outputs, out_of_order),
    )


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
    outputs = {"topic": check(expect(wanted, exclaim(topics)), History.of(found.output))}
    out_of_order: list[str] = []
    if found.files is not None:
        outputs["files"] = _verdict_of_files(topics, wanted, rows)
        out_of_order = _out_of_order(found.files)
    twice = len(there) != len(set(there))
    of_input = ["the input itself holds a record twice"] if twice else []
    unknown = set(unacknowledged)
    taken = {origin_of(record) for record in sent if record.value not in unknown} - set(there)
    return RoundVerdict(
        records=len(wanted),
        outputs=len(outputs),
        taken=len(taken),
        taken_read=len(taken & read),
        faults=(*_told(outputs), *of_input, *out_of_order),
        counts=_counts(outputs, out_of_order),
    )


def with_sight(
    found: RoundVerdict, seen: History, final: History, *, is_loss_told: bool
) -> RoundVerdict:
    """The verdict, with what was seen while the round went on. Pure.

    Args:
        found: on what is there in the end.
        seen: of the topic, by a reader that read along.
        final: of the topic, in the end.
        is_loss_told: the job has said that records are gone.
    """
    prefix = check_prefix(seen, final)
    faults = [] if prefix.is_clean else [f"a reader: {prefix}"]
    if found.taken_read and not is_loss_told:
        faults.append(f"nothing was said of {found.taken_read} records that are gone")
    torn = found.counts.get("torn", 0) + len(prefix.broken)
    return replace(found, faults=(*found.faults, *faults), counts={**found.counts, "torn": torn})


def _told(outputs: Mapping[str, HistoryVerdict]) -> list[str]:
    return [f"{name}: {verdict}" for name, verdict in outputs.items() if not verdict.is_clean]


def _counts(outputs: Mapping[str, HistoryVerdict], out_of_order: Sequence[str]) -> dict[str, int]:
    found = list(outputs.values())
    return {
        "lost": sum(one.lost for one in found),
        "doubled": sum(one.duplicated for one in found),
        "reordered": sum(one.reordered for one in found) + len(out_of_order),
        "foreign": sum(one.unexpected + one.corrupted for one in found),
        "torn": sum(one.torn for one in found),
    }


def _verdict_of_files(
    topics: Topics, wanted: Sequence[Record], rows: Sequence[Record]
) -> HistoryVerdict:
    """An offset of the input may have come twice by now, so a row's place is its sequence."""

    def mapping(record: Record) -> Iterable[Record]:
        for made in exclaim(topics)(record):
            yield made._replace(headers=())

    in_order = sorted(rows, key=lambda row: (row.partition, row.offset))
    return check(expect(wanted, mapping), History.of(in_order))


def _out_of_order(files: Mapping[str, Sequence[Record]]) -> list[str]:
    return out_of_order(
        {path: [(row.partition, row.offset) for row in file] for path, file in files.items()}
    )


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
