"""What is said of work that ended by no error of Sluice: most often, one of a function's own."""

import traceback
from itertools import dropwhile

from sluice.runtime.errors import StreamError

__all__ = ["in_short", "raised_in", "task_failed"]

_TRACE = "traceback"
_PYTHON_TRACE = "Traceback (most recent call last):"
_JAVA_FRAME = "\n\tat "
_QUERY = "\n=== Streaming Query ==="
_MOST_OF_TRACE = 2_000
_MOST_OF_ERROR = 500


def task_failed(what: str, error: Exception, *, region: str, attempt_id: int) -> StreamError:
    """A region's work ended by this error, which is its cause where both are in one process.

    Args:
        what: failed.
        error: what was caught.
        region, attempt_id: whose work it was.
    """
    said = "".join(traceback.format_exception(error))
    python = said.partition(_JAVA_FRAME)[0]  # behind it comes Java's own stack
    python = python.partition(_QUERY)[0].rstrip()  # and where the query stood, by Spark's names
    failed = StreamError(
        what,
        {
            "region": region,
            "attempt_id": attempt_id,
            "error": raised_in(python),
            _TRACE: python[-_MOST_OF_TRACE:],
        },
        "It begins again at the last checkpoint, as often as the job tolerates. If a function "
        "raised it, correct that, or leave such records out: docs/guide/functions.md.",
    )
    failed.__cause__ = error
    return failed


def raised_in(said: str) -> str:
    """Type and message of the error at the end of a traceback; all, where there is none. Pure."""
    told = said.rpartition(_PYTHON_TRACE)[2].strip("\n").splitlines()
    behind_frames = list(dropwhile(lambda line: line.startswith(" "), told))
    return " ".join(line.strip() for line in behind_frames or told)[:_MOST_OF_ERROR]


def in_short(error: BaseException) -> str:
    """Type and text of an error; of failed work without its traceback and what comes next. Pure."""
    kind = type(error).__name__
    if isinstance(error, StreamError) and _TRACE in error.args[1]:
        what, where, _ = error.args
        told = " ".join(f"{key}={value}" for key, value in where.items() if key != _TRACE)
        return f"{kind}: {what} [{told}]"
    return f"{kind}: {error}"
