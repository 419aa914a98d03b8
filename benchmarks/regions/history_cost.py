"""The cost of history and metrics: epochs of 100 ms in 16 regions, with a file that is full.

The listeners get the progress of ten checkpoints a second, in real time. The history writes to a
local disk. The figure is the processor time of this process, which does nothing else.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.measuring.figures import Figure
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.history.history_entries import checkpoint_entry
from sluice.runtime.history.history_file import HISTORY_FILE, HistoryMembers
from sluice.runtime.history.job_history import JobHistory
from sluice.runtime.model.acknowledgement import RecordCounts, RegionTimes
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.service.metrics import CheckpointMetrics
from sluice.runtime.storage.local_fs import LocalFileSystem

__all__ = ["measure"]

_REGIONS = 16
_EPOCH_S = 0.1
_EPOCHS_PER_SCRAPE = 150  # as with scrape_interval: 15s
_SECONDS = 20.0
_EARLIER = 20_000
_STATES = (
    *(State.ARMED, State.ALIGNING, State.PRE_COMMITTED, State.DECIDING),
    *(State.DECIDED, State.COMMITTED, State.MARKED),
)
_STATUS = JobStatus(
    state="running",
    drop_limit=None,
    error="",
    last_decided=0,
    last_committed=0,
    pending=(),
    regions=(),
)


def measure(*, repeat: int, seconds: float = _SECONDS) -> list[Figure]:
    """Measure one run after the other."""
    return [
        Figure(
            what=f"history and metrics, epochs of 100 ms, {_REGIONS} regions",
            runs=[_share(seconds) for _ in range(repeat)],
            unit="% of a core",
            goal="<= 1",
            most=1.0,
            note=f"{seconds:.0f} s each, with a full history file on a local disk",
        )
    ]


def _share(seconds: float) -> float:
    drawn = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        fs = LocalFileSystem(Path(directory))
        fs.replace(HISTORY_FILE, _full(drawn))
        epochs = [list(_progress(n, drawn)) for n in range(round(seconds / _EPOCH_S))]
        with JobHistory(fs, lambda: _STATUS) as history:
            history.begin({"attempt_id": 1})
            while not history.view()["checkpoints"]:  # it reads the file, once for a run
                time.sleep(0.1)  # its thread gives no event
            return 100.0 * _fed(epochs, history)


def _fed(epochs: Sequence[Sequence[Progress]], history: JobHistory) -> float:
    """The share of a core that the listeners and the scrapes use."""
    registry = CollectorRegistry()
    listeners: Sequence[ProgressListener] = (history, CheckpointMetrics(registry))
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    for number, epoch in enumerate(epochs):
        if number % _EPOCHS_PER_SCRAPE == 0:
            generate_latest(registry)
        for progress, listener in product(epoch, listeners):
            listener.on_progress(progress)
        due_s = began_s + (number + 1) * _EPOCH_S
        time.sleep(max(0.0, due_s - time.monotonic()))  # the pace of the epochs
    return (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)


def _full(drawn: random.Random) -> bytes:
    members = HistoryMembers()
    members.add("samples", [[n, drawn.random(), drawn.random()] for n in range(_EARLIER)])
    for start in range(0, _EARLIER, 50):
        found = [list(_progress(start + n, drawn))[-1] for n in range(50)]
        members.add("checkpoints", [checkpoint_entry(each, began_ms=0) for each in found])
    return members.content()


def _progress(number: int, drawn: random.Random) -> Iterator[Progress]:
    for state in _STATES:
        is_end = state is State.MARKED
        yield Progress(
            checkpoint_id=number,
            kind=CheckpointKind.CHECKPOINT,
            requested_by="interval",
            state=state,
            regions=_REGIONS,
            records=1_000,
            acked_s=drawn.random(),
            decided_s=drawn.random(),
            committed_s=drawn.random(),
            marked_s=drawn.random(),
            counts={"clean": RecordCounts(read=1_000, counters={"rejected": 3})},
            stages={f"orders.{n}": _times(drawn) for n in range(_REGIONS)} if is_end else {},
        )


def _times(drawn: random.Random) -> RegionTimes:
    return RegionTimes(
        read_s=drawn.random(),
        function_s=drawn.random(),
        write_s=drawn.random(),
        flush_s=drawn.random(),
        acknowledged_s=drawn.random(),
    )
