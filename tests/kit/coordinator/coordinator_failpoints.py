"""The named steps of a checkpoint at which a test may kill or pause the coordinator's process."""

from sluice.runtime.coordinator.core.events import RegionalStep

__all__ = ["FAILPOINTS", "REGIONAL_FAILPOINTS"]

_STEPS = (
    "trigger",
    "cut",
    "ack",
    "decision",
    "commit",
    "mark",
    "return",
    "group-offsets",
    "fencing",
    "state-sweep",
    "sweep",
    "state-files",
)

REGIONAL_FAILPOINTS: tuple[str, ...] = (
    *(f"{when}-{step.value}" for step in RegionalStep for when in ("before", "after")),
    "before-detail",  # around the call that gives a committer the details of a regional checkpoint
    "after-detail",
    "mid-move",  # the part of the old region is committed, and not yet on record
)
"""Reached only if regions fail, time out, or exchange splits."""

FAILPOINTS: tuple[str, ...] = (
    *(f"{when}-{step}" for step in _STEPS for when in ("before", "after")),
    "mid-commit",  # after the first of several committables
    "during-state-files",  # between the last look for a newer run and the deletion
    *REGIONAL_FAILPOINTS,
)
"""Every failpoint of the coordinator: before and after each numbered step of the protocol."""
