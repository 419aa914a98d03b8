"""Display of `sluice demo`: progress while it runs, and the verdict as a table."""

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from sluice.runtime.checker import HistoryVerdict, Location, PrefixVerdict

__all__ = ["DemoView", "Outcome", "Phase"]


class Phase(enum.Enum):
    """Where the demo is."""

    BROKER = "starting a Kafka broker"
    RUNNING = "the pipeline copies live orders, exactly once"
    KILLED = "kill -9 of the driver, Spark's JVM and its workers; starting again"
    RECOVERING = "the new run commits decided transactions and aborts the rest"
    STOPPING = "stopping the pipeline"
    CHECKING = "reading everything back and comparing"


class DemoView(Progress):
    """A live display on a terminal, elsewhere a line for each phase. Used as a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        columns = TextColumn("{task.description:<28}"), BarColumn(40), MofNCompleteColumn()
        super().__init__(*columns, console=console, transient=True, refresh_per_second=8)
        self._started_s = time.monotonic()
        self._sent = self.add_task("orders sent", total=total)
        self._visible = self.add_task("committed, seen by readers", total=total)

    def enter(self, phase: Phase) -> None:
        """Start a phase; its line stays on the terminal."""
        self.console.print(f"{time.monotonic() - self._started_s:5.1f} s  {phase.value}")

    def show(self, *, sent: int, visible: int, checkpoint_id: int | None) -> None:
        """Show the current numbers.

        Args:
            sent: records in the input topic.
            visible: records that a read_committed reader of the output has seen.
            checkpoint_id: newest checkpoint that is committed on record.
        """
        name = "committed" if checkpoint_id is None else f"committed, checkpoint {checkpoint_id}"
        self.update(self._sent, completed=sent)
        self.update(self._visible, completed=visible, description=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of the demo.

    Attributes:
        sent: number of input records.
        visible_at_kill: records that readers had seen at the kill.
        elapsed_s: from the first start to the last visible record, including the kill.
        peak_rate: records appended to the output in the best second, by the broker's clock.
        recovery_s: from the kill to the next visible record.
        spark_start_s: the part of it until the new run's first durable record: Python's and
            Spark's own start.
    """

    verdict: HistoryVerdict
    prefix: PrefixVerdict
    sent: int
    visible_at_kill: int
    elapsed_s: float
    peak_rate: int
    recovery_s: float
    spark_start_s: float

    @property
    def is_clean(self) -> bool:
        """Every record is there once, in order, and readers never saw anything else."""
        complete = self.verdict.expected == self.sent
        return complete and self.verdict.is_clean and self.prefix.is_clean

    def table(self) -> Table:
        """The verdict for people, with the first positions of each fault."""
        verdict, locations = self.verdict, self.verdict.examples
        prefix = _fault(len(self.prefix.broken), self.prefix.broken, clean="yes", dirty="no")
        table = Table(show_header=False)
        for name, value in (
            ("records in", f"{verdict.expected:,}"),
            ("records out", f"{verdict.found:,}"),
            ("lost", _fault(verdict.lost, locations.lost)),
            ("duplicated", _fault(verdict.duplicated, locations.duplicated)),
            ("never sent or aborted", _fault(verdict.unexpected, locations.unexpected)),
            ("corrupted", _fault(verdict.corrupted, locations.corrupted)),
            ("reordered", _fault(verdict.reordered, locations.reordered)),
            ("readers saw only a prefix, nothing torn", prefix),
            ("visible when killed", f"{self.visible_at_kill:,}"),
            ("records/s, best second", f"{self.peak_rate:,}"),
            ("records/s, whole run, kill included", f"{self.sent / self.elapsed_s:,.0f}"),
            ("kill to next visible commit", f"{self.recovery_s:.1f} s"),
            ("  of which Python and Spark start", f"{self.spark_start_s:.1f} s"),
        ):
            table.add_row(name, value)
        return table

    def title(self) -> str:
        """The verdict in one line."""
        if self.is_clean:
            return "[bold green]exactly once: nothing lost, nothing doubled, order kept"
        return "[bold red]NOT exactly once"


def _fault(
    count: int, locations: Sequence[Location] = (), *, clean: str = "0", dirty: str = ""
) -> str:
    if not count:
        return f"[green]{clean}"
    where = f" at {', '.join(map(str, locations))}" if locations else ""
    return f"[bold red]{dirty or format(count, ',')}{where}"
