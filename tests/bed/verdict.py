"""Compares the outputs of a round with the records that the feeder sent.

An unclean leader election deletes records from the input, and the job may have read them before.
So each record names its origin. A record that is in the input, or in any output, must be in every
output: once, in order.
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
    """The checker's findings in one round's output.

    Attributes:
        records: that each output must have once.
        outputs: 1, or 2 with files.
        taken: acknowledged records that Kafka has deleted from the input.
        taken_read: of those, the records that the job had read before: each output has them once.
        faults: descriptions; empty: lost 0, doubled 0, reordered 0, foreign 0, and a reader saw at
            any time a prefix of the final output.
        counts: over all outputs, of records ``lost``, ``doubled``, ``reordered`` and ``foreign``
            (never sent, or with another content). ``torn`` counts partitions in which a reader saw
            records that are not in the final output.
    """

    records: int
    outputs: int
    taken: int = 0
    taken_read: int = 0
    faults: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The records of a round at its end.

    Attributes:
        source: of the input.
        output: of the output topic.
        files: the rows of each file, by its path; None: the job writes no files.
    """

    source: Sequence[Record]
    output: Sequence[Record]
    files: Mapping[str, Sequence[Record]] | None = None


def judge_all(topics: Topics, *, sent: int, writes_files: bool) -> RoundVerdict:
    """Every sent record must be in every output."""
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
    """Every sent record must be in every output, unless Kafka deleted it before the job read it.

    Args:
        feeder: stopped; the value of each record names its origin.
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
        unacknowledged: values of records that the input may have.
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
    found: RoundVerdict, seen: History, final: History, *, is_loss_reported: bool
) -> RoundVerdict:
    """The verdict, with the records that a reader saw during the round. Pure.

    Args:
        found: the verdict on the final outputs.
        seen: records of the topic that the reader saw.
        final: records of the topic at the end.
        is_loss_reported: the job has reported that records are gone.
    """
    prefix = check_prefix(seen, final)
    faults = [] if prefix.is_clean else [f"a reader: {prefix}"]
    if found.taken_read and not is_loss_reported:
        faults.append(f"the job did not report {found.taken_read} records that are gone")
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
    """The input may have used an offset twice, so the sequence gives the order of the rows."""

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
    """Each row of a file, with its sequence in its partition."""
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
        assert origin is not None, f"a record that the feeder did not send: {record}"
        found.append(origin)
    return found
