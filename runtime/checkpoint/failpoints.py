"""The named steps of a checkpoint at which a test may kill or pause the coordinator's process."""

__all__ = ["FAILPOINTS"]

_STEPS = (
    "trigger",
    "cut",
    "ack",
    "decision",
    "commit",
    "mark",
    "return",
    "group-offsets",
    "seal",
    "sweep",
)

FAILPOINTS: tuple[str, ...] = (
    *(f"{when}-{step}" for step in _STEPS for when in ("before", "after")),
    "mid-commit",  # after the first of several committables
)
"""Every failpoint of the coordinator: before and after each numbered step of the protocol."""
