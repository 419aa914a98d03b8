"""How the tasks of a job keep their state: made in the driver, opened in each task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named
from sluice.runtime.state.backend import StateBackend
from sluice.runtime.state.loading import load_splits
from sluice.runtime.state.memory_backend import MemoryBackend
from sluice.runtime.state.rocksdb_backend import RocksDbBackend
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.task_state import TaskState

__all__ = ["StateSettings"]

_LEAST_MIB = 16
_OVERLAY_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """State of a task. Picklable. A job may have another backend at each start.

    Attributes:
        backend: ``memory`` or ``rocksdb``.
        memory_mib: memory of a task for its state.
        directory: where ``rocksdb`` keeps its databases; None: where temporary files are.
    """

    backend: str = "memory"
    memory_mib: int = 256
    directory: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in _BACKENDS or self.memory_mib < _LEAST_MIB:
            raise ConfigError(
                "the settings of keyed state are not valid",
                {"state_backend": self.backend, "state_memory_mib": self.memory_mib},
                f"Use one of {', '.join(_BACKENDS)}, and at least {_LEAST_MIB} MiB.",
            )

    def require_available(self) -> None:
        """Check in the driver that the backend's package is installed.

        Raises:
            MissingRequirementError: it is not; names the extra.
        """
        if self.backend == "rocksdb":
            with extras_named():
                import rocksdict  # noqa: F401 - tasks use it

    def open_backend(self) -> StateBackend:
        """The backend of one task attempt. Executor.

        Raises:
            MissingRequirementError: its package is not installed; names the extra.
            StorageError: the local directory cannot be made.
        """
        return _BACKENDS[self.backend](self)

    def open(self, store: StateStore, on_progress: Callable[[], None] = lambda: None) -> TaskState:
        """The state of one task attempt, without splits; raises as `open_backend` does.

        Args:
            on_progress: see `load_splits`.
        """
        return TaskState(
            self.open_backend(),
            load=partial(load_splits, store, on_progress),
            overlay_mib=self.memory_mib / _OVERLAY_SHARE,
        )


def _memory(settings: StateSettings) -> StateBackend:
    return MemoryBackend(memory_bytes=settings.memory_mib << 20)


def _rocksdb(settings: StateSettings) -> StateBackend:
    return RocksDbBackend(memory_bytes=settings.memory_mib << 20, directory=settings.directory)


_BACKENDS: MappingProxyType[str, Callable[[StateSettings], StateBackend]] = MappingProxyType(
    {"memory": _memory, "rocksdb": _rocksdb}
)
