"""Memory for the records of one task, and its division among source and sinks. Pure."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sluice.runtime.errors import ConfigError

__all__ = ["DEFAULT_MIB", "TaskMemory", "checked_mib", "settings_within"]

DEFAULT_MIB = 256
# A drop-in query reads and writes in two processes, and more is not faster.
_DROP_IN_MIB = 128
_LEAST_MIB = 64
_MIB = 2**20
# Memory that clients and allocators keep after large records, with any queue size: measured,
# docs/research/tuning.md.
_KEPT_BYTES = 48 * _MIB

# Sixteenths of the rest. A batch is in memory several times: as Python objects of the client, as
# Arrow columns, as results of functions, and as records of a producer.
_READING, _WRITING, _BATCHES = 4, 3, 8


_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMemory:
    """The limit of one task, before a source or a sink derives its settings from it. Picklable.

    Attributes:
        total_bytes: above the memory of an idle task; >= 64 MiB.
        claimed_bytes: the part that the user's own settings take; they have priority, and the rest
            is shared; >= 0.
        reads: whether the task reads from a Sluice source.
        sinks: number of Sluice sinks that it writes to; >= 0.
    """

    total_bytes: int = DEFAULT_MIB * _MIB
    claimed_bytes: int = 0
    reads: bool = True
    sinks: int = 1

    @classmethod
    def of_mib(
        cls, mib: int, *, claimed_bytes: int = 0, reads: bool = True, sinks: int = 1
    ) -> "TaskMemory":
        """From a setting that `checked_mib` has returned.

        Raises:
            ConfigError: the user's own settings take more than the whole limit.
        """
        total_bytes = mib * _MIB
        if claimed_bytes > total_bytes - _KEPT_BYTES:
            raise ConfigError(
                "the queues of kafka.* options do not fit into a task's memory",
                {
                    "task_memory_mib": mib,
                    "for_queues_mib": (total_bytes - _KEPT_BYTES) // _MIB,
                    "requested_mib": -(-claimed_bytes // _MIB),
                },
                "Leave the options out, so that the queues are made to fit; or raise the limit.",
            )
        return cls(total_bytes=total_bytes, claimed_bytes=claimed_bytes, reads=reads, sinks=sinks)

    @property
    def reading_bytes(self) -> int:
        """For a consumer's queue, and for records on their way into it."""
        return self._part(_READING if self.sinks else _READING + _WRITING)

    @property
    def writing_bytes(self) -> int:
        """For the queue of each sink's producer."""
        return self._part(_WRITING if self.reads else _WRITING + _READING) // max(1, self.sinks)

    @property
    def batch_bytes(self) -> int:
        """For all copies of the current batch."""
        return self._part(_BATCHES)

    def _part(self, sixteenths: int) -> int:
        return (self.total_bytes - _KEPT_BYTES - self.claimed_bytes) * sixteenths // 16


def checked_mib(mib: int, *, name: str) -> int:
    """The setting, checked.

    Raises:
        ConfigError: it is too small for any task.
    """
    if mib < _LEAST_MIB:
        raise ConfigError(
            "a task cannot hold its records in so little memory",
            {name: mib},
            f"Give at least {_LEAST_MIB} MiB, or leave it out.",
        )
    return mib


def settings_within(mib: int | None, make: Callable[[int], _Settings]) -> _Settings:
    """The settings of a drop-in query's tasks.

    Args:
        mib: the user's limit; None: 128, or 256 if ``make`` does not accept that.
        make: from a limit in MiB.
    Raises:
        ConfigError: they do not fit.
    """
    if mib is None:
        with suppress(ConfigError):
            return make(_DROP_IN_MIB)
    return make(mib or DEFAULT_MIB)
