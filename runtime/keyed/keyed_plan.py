"""The description of a region's keyed state, from which a task opens it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.runtime.errors import StorageUnreachableError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_settings import StateSettings
from sluice.runtime.state.state_writer import StateWriter

__all__ = ["LOADING", "STATE_FILES", "KeyedPlan", "LoadReports"]

LOADING = "it is being loaded"
STATE_FILES = "files of keyed state"
"""For what a task waits while the checkpoint store does not answer."""
_REPORT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedPlan:
    """Picklable; made in the driver, opened in tasks.

    Attributes:
        store: where the state's files are.
        source_id: operator id of the source.
        settings: how a task keeps it.
        max_parallelism: see `KeyedTask`.
        time_column: see `sluice.runtime.contracts.keyed.OperatorScope`.
    """

    store: StateStore
    source_id: str
    settings: StateSettings = field(default_factory=StateSettings)
    max_parallelism: int = 0
    time_column: str | None = None

    def open(
        self,
        functions: Sequence[ChainedFunction],
        *,
        region: str,
        attempt_id: int,
        restored: KeyedState | None,
        splits: Sequence[SplitRange],
        on_outage: Callable[[StorageUnreachableError], None],
        job_name: str,
        on_progress: Callable[[], None] = lambda: None,
    ) -> KeyedTask:
        """Executor: load the state of splits.

        Args:
            restored: the state of ``splits``.
            on_outage: called between tries while the store does not answer; raises to end the wait.
            on_progress: called while state is loaded, in any thread; raises to end that.
        Raises:
            DamagedCheckpointError: a file is not as the record names it.
            StorageUnreachableError: the store does not answer.
            ConfigError: the state does not fit in the memory, or this host does not see the store.
        """
        self.store.files.require(self.store.root)
        state = self.settings.open(self.store, on_progress)
        writer = StateWriter(self.store, region=region, attempt_id=attempt_id, on_outage=on_outage)
        try:
            return KeyedTask(
                functions,
                source_id=self.source_id,
                state=state,
                writer=writer,
                restored=restored,
                splits=splits,
                max_parallelism=self.max_parallelism,
                time_column=self.time_column,
                job_name=job_name,
            )
        except BaseException:
            writer.close()
            state.close()
            raise


class LoadReports:
    """Tells the driver now and then that the state is being loaded. Any thread of the task.

    Args:
        report: one report; raises once the attempt is over.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report: Callable[[], None] | None = report
        self._lock = threading.Lock()
        self._next_s = float("-inf")

    def __call__(self) -> None:
        """The load makes progress."""
        if time.monotonic() < self._next_s:
            return
        with self._lock:
            if self._report is not None and time.monotonic() >= self._next_s:
                self._report()
                self._next_s = time.monotonic() + _REPORT_S

    def end(self) -> None:
        """The state is loaded; that of splits that come later is reported by the epoch."""
        self._report = None
