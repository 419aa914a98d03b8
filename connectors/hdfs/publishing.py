"""What to do with one staged file, told by looking at both of its names: protocol rule 20. Pure."""

import enum

__all__ = ["Step", "next_step"]


class Step(enum.Enum):
    """What is left to do for a file that a decision names."""

    MOVE = "move"  # staged and whole: give it its final name
    NONE = "none"  # published, by us or by an earlier run
    DELETE_STAGED = "delete staged"  # published, and the staged name is still there
    STOP = "stop"  # neither, or not what was recorded: a human must look


def next_step(staged_bytes: int | None, final_bytes: int | None, *, length_bytes: int) -> Step:
    """The step for a file of ``length_bytes``.

    Args:
        staged_bytes: length under the staged name, None when absent.
        final_bytes: length under the final name, None when absent.
        length_bytes: as recorded.
    """
    found = {length for length in (staged_bytes, final_bytes) if length is not None}
    if found != {length_bytes}:
        return Step.STOP
    if final_bytes is None:
        return Step.MOVE
    return Step.NONE if staged_bytes is None else Step.DELETE_STAGED
