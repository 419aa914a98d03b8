"""The result of `assert_exactly_once`, and its text: each fault, its first places, what to do."""

from dataclasses import dataclass

from sluice.runtime.checker import Kind, Record

__all__ = ["OPEN", "Fault", "NotExactlyOnceError", "Verdict", "content_of"]

OPEN = "open"
"""The kind of fault of a transaction that was not ended."""

_SHOWN_CHARACTERS = 60

_MEANINGS = {
    Kind.LOST.value: (
        "expected, and not in the output",
        "Commit the position in the input in the transaction of the output, or after it. "
        "Compare after the pipeline has written everything.",
    ),
    Kind.DUPLICATED.value: (
        "in the output more often than expected",
        "Write the output and the position in the input in one transaction: after a kill the "
        "pipeline reads the input again.",
    ),
    Kind.UNEXPECTED.value: (
        "in the output, and no input record becomes it",
        "Compare key, value and headers with the result of `expected`. Write to the output with "
        "this pipeline alone.",
    ),
    Kind.REORDERED.value: (
        "not in the order of the input; after their removal the rest is in order",
        "Write the records of an input partition by one producer, and with idempotence. Pass "
        "order=False if order does not matter.",
    ),
    Kind.CORRUPTED.value: (
        "has the name of a missing record, and other content",
        "Compare the content with the result of `expected`.",
    ),
    Kind.ABORTED.value: (
        "made of an input record whose transaction was aborted, or is open",
        "Read the input with isolation.level=read_committed.",
    ),
    Kind.TORN.value: (
        "transactions of which the output holds a part",
        "Write all records of one transaction by one producer, and check that each was "
        "acknowledged before the commit.",
    ),
    OPEN: (
        "transactions that block the readers of the output",
        "Commit or abort on each way out of the program. A producer that starts with the same "
        "transactional id aborts it; so does `sluice txn abort` for a job of Sluice.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """All faults of one kind.

    Attributes:
        kind: lost, duplicated, unexpected, reordered, corrupted, aborted, torn or open.
        count: records; of torn and open: transactions.
        places: the first few, in words.
    """

    kind: str
    count: int
    places: tuple[str, ...]

    def __str__(self) -> str:
        meaning, remedy = _MEANINGS[self.kind]
        more = self.count - len(self.places)
        lines = [f"{self.kind} {self.count:,}: {meaning}", *(f"  {place}" for place in self.places)]
        return "\n".join([*lines, *([f"  and {more:,} more"] if more > 0 else []), f"  {remedy}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a comparison.

    Attributes:
        expected: records that the output must have; with ``last_per_key`` keys.
        found: records that the output has.
        faults: one for each kind that occurred; empty: exactly once.
        notes: parts that were not compared, and hints.
    """

    expected: int
    found: int
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of fault that occurred."""
        return frozenset(fault.kind for fault in self.faults)

    def __str__(self) -> str:
        counts = ", ".join(f"{fault.kind} {fault.count:,}" for fault in self.faults)
        head = f"{counts or 'exactly once'} (expected {self.expected:,}, found {self.found:,})"
        return "\n".join([head, *map(str, self.faults), *(f"note: {note}" for note in self.notes)])


class NotExactlyOnceError(AssertionError):
    """The output of a pipeline is not the one that its input must become.

    Attributes:
        verdict: the faults.
    """

    def __init__(self, title: str, verdict: Verdict) -> None:
        super().__init__(title, verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        title, verdict = self.args
        return f"{title}: {verdict}"


def content_of(record: Record) -> str:
    """Key and value, shortened."""
    return f"key={_shown(record.key)} value={_shown(record.value)}"


def _shown(content: bytes | None) -> str:
    if content is None:
        return "None"
    try:
        text = repr(content.decode())
    except UnicodeDecodeError:
        text = repr(content)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
