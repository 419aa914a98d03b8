"""The verdict on a windowed run: each closed window occurs once, with exactly its records.

The pipeline emits, per closed window, its start (milliseconds, decimal text) as key and the number
of its records as value. Windows that the watermark has not passed stay open. After a complete run,
all windows before the watermark are expected; after any other run, those up to the last emitted
one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.runtime.checker.records.record import Record
from tests.kit.key_counts import whole_number

__all__ = ["WindowVerdict", "check_windows"]

_MAX_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowVerdict:
    """Result of `check_windows`; all fields but the first two count faults.

    Attributes:
        windows: windows that hold records.
        emitted: records of the output.
        lost: closed windows that were never emitted.
        duplicated: emissions of a window that was emitted before.
        wrong: windows whose count is not the number of their records.
        unexpected: emissions that are not a count of a window with records.
        examples: the first faults, in words.
    """

    windows: int
    emitted: int
    lost: int
    duplicated: int
    wrong: int
    unexpected: int
    examples: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Every closed window was emitted once with its exact count, and at least one was
        emitted."""
        has_faults = self.lost or self.duplicated or self.wrong or self.unexpected
        return self.emitted > 0 and not has_faults

    def __str__(self) -> str:
        if not self.emitted:
            return f"windows {self.windows}, emitted 0: nothing was compared"
        names = ("lost", "duplicated", "wrong", "unexpected")
        faults = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        shown = f" ({'; '.join(self.examples)})" if self.examples else ""
        return f"windows {self.windows}, emitted {self.emitted}, {faults}{shown}"


def check_windows(
    timestamps_ms: Iterable[int],
    emissions: Iterable[Record],
    *,
    window_ms: int,
    delay_ms: int | None = None,
) -> WindowVerdict:
    """Judge the output of a count per tumbling window.

    Args:
        timestamps_ms: of every input record.
        emissions: the output, in any order.
        window_ms: length of a window; > 0.
        delay_ms: distance of the watermark from the latest record, if the run has read all records
            and ended; None: it was stopped earlier.
    """
    expected: Counter[int] = Counter()
    latest_ms = 0
    for at in timestamps_ms:
        expected[at - at % window_ms] += 1
        latest_ms = max(latest_ms, at)
    seen: Counter[int] = Counter()
    wrong, unexpected = 0, 0
    examples: list[str] = []  # at most so many are shown
    emitted = 0
    for record in emissions:
        emitted += 1
        del examples[_MAX_EXAMPLES:]
        window, count = whole_number(record.key), whole_number(record.value)
        if window is None or count is None or window not in expected:
            unexpected += 1
            examples.append(f"key {record.key!r} value {record.value!r}")
            continue
        seen[window] += 1
        if count != expected[window]:
            wrong += 1
            examples.append(f"window {window}: {count} instead of {expected[window]}")
    before = max(seen, default=0)
    if delay_ms is not None and expected:
        before = max(before, latest_ms - delay_ms - window_ms + 1)
    lost = [window for window in expected if window < before and not seen[window]]
    examples += [f"window {window} was never emitted" for window in lost[:_MAX_EXAMPLES]]
    return WindowVerdict(
        windows=len(expected),
        emitted=emitted,
        lost=len(lost),
        duplicated=sum(times - 1 for times in seen.values()),
        wrong=wrong,
        unexpected=unexpected,
        examples=tuple(examples[:_MAX_EXAMPLES]),
    )
