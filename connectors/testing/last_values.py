"""Compares the last record of each key with an expected value, for aggregations."""

from collections.abc import Mapping

from sluice.connectors.kafka.tools.verify.places import Files, Place
from sluice.connectors.testing.sides import Content, as_bytes
from sluice.connectors.testing.verdict import Fault, Verdict, content_of
from sluice.runtime.checker import Kind, Location, Record
from sluice.runtime.errors import ConfigError

__all__ = ["last_values"]

_PLACES = 3


class _Places:
    """Counts faults of one kind and keeps the first places."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.count = 0
        self.first: list[str] = []

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.first) < _PLACES:
            self.first.append(place)


def last_values(output: Place, expected: Mapping[Content, Content]) -> Verdict:
    """The verdict on the last record of each key; memory for the expected keys.

    Raises:
        ConfigError: the output is files, whose rows have no order; or it and ``expected`` are
            empty.
    """
    if isinstance(output, Files):
        raise ConfigError(
            "files have no last record of a key",
            {"output": output.name},
            "Compare the rows of the files: pass the expected rows as a list of dicts.",
        )
    wanted = {as_bytes(key): as_bytes(value) for key, value in expected.items()}
    last: dict[bytes | None, tuple[Record, Location]] = {}
    unexpected, reordered = _Places(Kind.UNEXPECTED), _Places(Kind.REORDERED)
    found = 0
    for found, (record, at) in enumerate(  # noqa: B007 - told below
        output.records(need_headers=False, left_out=set()), 1
    ):
        if record.key not in wanted:
            unexpected.add(f"{at} {content_of(record)}")
            continue
        before = last.get(record.key)
        if before is not None and before[1].partition != at.partition:
            reordered.add(f"{at} {content_of(record)} also in partition {before[1].partition}")
        last[record.key] = record, at
    if not found + len(wanted):
        raise ConfigError(
            "there is nothing to compare: nothing is expected, and the output is empty",
            {"output": output.name},
            "Name the topic that the job has written, and the expected keys.",
        )
    lost, corrupted = _Places(Kind.LOST), _Places(Kind.CORRUPTED)
    for key, value in wanted.items():
        if key in last:
            record, at = last[key]
            if record.value != value:
                want = content_of(record._replace(value=value))
                corrupted.add(f"{at} {content_of(record)} expected {want}")
        elif value is not None:
            lost.add(content_of(Record(output.name, 0, 0, key, value)))
    kinds = (lost, unexpected, reordered, corrupted)
    return Verdict(
        expected=len(wanted),
        found=found,
        faults=tuple(
            Fault(kind=one.kind.value, count=one.count, places=tuple(one.first))
            for one in kinds
            if one.count
        ),
    )
