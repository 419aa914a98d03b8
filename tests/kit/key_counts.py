"""The verdict on a stateful run: whether running counts per key survived kills exactly.

The pipeline emits, per epoch and changed key, the key and how many records of it came so far, as
decimal text. Exactly once means: for each key the emitted counts grow strictly, and the last one is
the number of input records.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.runtime.checker.records.record import Record

__all__ = ["KeyCountVerdict", "check_key_counts", "whole_number"]

_MAX_EXAMPLES = 10
_MAX_DIGITS = 20  # a number of 64 bits has no more; Python refuses to read thousands of them


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCountVerdict:
    """Result of `check_key_counts`; all fields but the first two count faults.

    Attributes:
        keys: distinct keys of the input.
        emissions: records of the output.
        missing: keys of the input that were never emitted.
        wrong: keys whose last emitted count is not the number of their input records.
        repeated: emissions with the count of the emission before: an epoch came twice.
        regressed: emissions with a smaller count than an earlier one: state was lost.
        unexpected: emissions that are not a number >= 1, or have a key that the input lacks.
        examples: the first faults, in words.
    """

    keys: int
    emissions: int
    missing: int
    wrong: int
    repeated: int
    regressed: int
    unexpected: int
    examples: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Every key was counted exactly, and at least one key was compared."""
        return self.keys > 0 and not (
            self.missing or self.wrong or self.repeated or self.regressed or self.unexpected
        )

    def __str__(self) -> str:
        if not (self.keys or self.emissions):
            return "keys 0, emissions 0: nothing was compared"
        names = ("missing", "wrong", "repeated", "regressed", "unexpected")
        faults = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        shown = f" ({'; '.join(self.examples)})" if self.examples else ""
        return f"keys {self.keys}, emissions {self.emissions}, {faults}{shown}"


def check_key_counts(keys: Iterable[bytes | None], emissions: Iterable[Record]) -> KeyCountVerdict:
    """Judge the output of a count per key.

    Args:
        keys: the key of every input record, as often as it occurs.
        emissions: the output; all emissions of a key in the order in which they were made, as in
            one partition.
    """
    expected = Counter(keys)
    last: dict[bytes | None, int] = {}
    faults = _Faults()
    emitted = 0
    for record in emissions:
        emitted += 1
        _judge(record, expected, last, faults)
    for key, total in expected.items():
        if key not in last:
            faults.add("missing", f"key {key!r}: {total} records, never emitted")
        elif last[key] != total:
            faults.add("wrong", f"key {key!r}: {last[key]} instead of {total}")
    return KeyCountVerdict(
        keys=len(expected),
        emissions=emitted,
        missing=faults.counts["missing"],
        wrong=faults.counts["wrong"],
        repeated=faults.counts["repeated"],
        regressed=faults.counts["regressed"],
        unexpected=faults.counts["unexpected"],
        examples=tuple(faults.examples),
    )


class _Faults:
    """Counts all faults, keeps the first few as text."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []

    def add(self, kind: str, words: str) -> None:
        self.counts[kind] += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(words)


def _judge(
    record: Record, expected: Counter[bytes | None], last: dict[bytes | None, int], faults: _Faults
) -> None:
    where = f"{record.topic}-{record.partition}@{record.offset}"
    count = whole_number(record.value)
    if not count or record.key not in expected:
        faults.add("unexpected", f"{where}: key {record.key!r} value {record.value!r}")
        return
    before = last.get(record.key, 0)
    if count == before:
        faults.add("repeated", f"{where}: key {record.key!r} again {count}")
    elif count < before:
        faults.add("regressed", f"{where}: key {record.key!r} back from {before} to {count}")
    # The newest emission counts, even a wrong one: readers of the topic use it.
    last[record.key] = count


def whole_number(content: bytes | None) -> int | None:
    """The number in the text of a key or a value; None: there is none, or it needs more than 64
    bits."""
    if content is None or not content.isdigit() or len(content) > _MAX_DIGITS:
        return None
    return int(content)
