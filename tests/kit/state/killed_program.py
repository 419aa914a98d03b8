"""A task with keyed state that may be killed anywhere: ``DIRECTORY``, from the last record on.

It writes epochs, whose content follows from their numbers alone, until one names a merged file of
this attempt. It exits with 1 if what it has restored is not that of the record. The attempt's
number decides the backend: a job may change it at any start.
"""

import pickle
import sys
from pathlib import Path

from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.state_settings import StateSettings
from tests.kit.state.state_beds import P0, P1, Content, StateTask, content_of, state_store

__all__ = ["expected"]

_MOST_EPOCHS = 500


def _changes(split: SplitKey, epoch: int) -> dict[bytes, bytes | None]:
    first = 7 * epoch + split[2]
    added: dict[bytes, bytes | None] = {
        b"%d" % (key % 97): b"%d" % epoch for key in range(first, first + 9)
    }
    return {**added, b"%d" % (3 * epoch % 97): None, b"epochs": b"%d" % epoch}


def expected(split: SplitKey, epochs: int) -> Content:
    """The content after so many epochs."""
    content = Content()
    for epoch in range(epochs):
        for key, value in _changes(split, epoch).items():
            content.plain.pop(key, None)
            if value is not None:
                content.plain[key] = value
        content.timed = {(epoch, b"timer"): b"%d" % epoch}
    return content


def main(directory: Path) -> int:
    """Run one attempt."""
    epochs, attempt_id, state = _last_record(directory)
    backend = "rocksdb" if attempt_id % 4 == 3 else "memory"
    task = StateTask(
        state_store(directory),
        {split: state.of([split]) if state else None for split in (P0, P1)},
        attempt_id=attempt_id,
        settings=StateSettings(backend=backend, directory=str(directory / "local")),
    )
    for split in (P0, P1):
        if content_of(task.state, split) != expected(split, epochs):
            return 1
    for epoch in range(epochs, epochs + _MOST_EPOCHS):
        for split in (P0, P1):
            task.put(split, _changes(split, epoch))
            removed = {(epoch - 1, b"timer"): None} if epoch else {}
            task.put_timed(split, {**removed, (epoch, b"timer"): b"%d" % epoch})
        state = task.end_epoch()
        _record(directory, epoch + 1, attempt_id, state)
        if any(f"/{attempt_id}-" in file.path and "merged" in file.path for file in state.files):
            task.close()
            return 0
    return 2


def _last_record(directory: Path) -> tuple[int, int, KeyedState | None]:
    """Epochs, the next attempt's number, and the state."""
    path = directory / "record"
    attempts = directory / "attempts"
    number = int(attempts.read_text()) + 1 if attempts.exists() else 0
    attempts.write_text(str(number))
    if not path.exists():
        return 0, number, None
    epochs, state = pickle.loads(path.read_bytes())
    return epochs, number, state


def _record(directory: Path, epochs: int, attempt_id: int, state: KeyedState) -> None:
    temporary = directory / f"record.{attempt_id}"
    temporary.write_bytes(pickle.dumps((epochs, state)))
    temporary.replace(directory / "record")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
