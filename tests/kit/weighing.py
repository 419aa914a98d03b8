"""A function for ``map_batches`` that takes its time, and notes how much memory its process has."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

_LOOK_S = 0.005
_noting: set[Path] = set()  # of this process


@dataclass(frozen=True, slots=True)
class SlowAndWeighed:
    """Sleeps for each batch; from the first one on a thread notes the most that was resident."""

    directory: Path
    pause_s: float

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        path = self.directory / str(os.getpid())
        if path not in _noting:
            _noting.add(path)
            threading.Thread(target=_note, args=(path,), daemon=True).start()
        time.sleep(self.pause_s)
        return batch


def _note(path: Path) -> None:
    process, most = psutil.Process(), 0
    while True:
        now = process.memory_info().rss
        if now > most:
            most = now
            try:
                draft = path.with_suffix(".draft")  # whoever looks finds a whole number
                draft.write_text(str(most))
                draft.replace(path)
            except OSError:  # the test is over, and its directory is gone
                return
        time.sleep(_LOOK_S)


def most_bytes(directory: Path) -> int:
    """Of the process that had the most."""
    return max(int(path.read_text()) for path in directory.glob("*[0-9]"))
