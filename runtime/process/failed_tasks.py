"""Text for work that ended by another error than Sluice's: usually one of a user's function."""

import os
import re
import traceback
from itertools import dropwhile

from sluice.runtime.errors import ConfigError, StreamError

__all__ = [
    "failed_host",
    "failed_subtask",
    "in_short",
    "note_ranges",
    "note_task",
    "raised_in",
    "task_failed",
]

_TASK = "task"
_HOST = "host"
_LOST_TASK = re.compile(
    r"Lost task (\d+\.\d+ in stage \S+ \(TID \d+\))(?: \((\S+) executor [^)\s]+\))?"
)
_TRACE = "traceback"
_PYTHON_TRACE = "Traceback (most recent call last):"
_JAVA_FRAME = "\n\tat "
_QUERY = "\n=== Streaming Query ==="
_RANGES = "sluice: source_ranges="
_RECORD = "sluice: record="
_FRAME = re.compile(r'^ +File "([^"<][^"]*\.py)", line (\d+), in (\S+)$', re.MULTILINE)
_LIBRARY = re.compile(r"/(site-packages|dist-packages|pyspark|lib/python[\d.]+)/")
_OURS = re.compile(r"/sluice/(runtime|connectors)/")
_MOST_OF_TRACE = 2_000
_MOST_OF_ERROR = 500
_NO_PYTHON = r'java\.io\.IOException: Cannot run program "([^"]+)"'
_UNFIT = (
    (r"^ModuleNotFoundError: No module named '([^']+)'", "an executor's Python lacks a module"),
    (r"\[PYTHON_VERSION_MISMATCH\] (.+)", "an executor has another Python"),
    (r"an executor has another Sluice \[([^\]]+)\]", "an executor has another Sluice"),
)
"""The errors of Python, Spark and `load_sent` which say that an executor's Python does not fit."""


def note_ranges(error: Exception, ranges: str, *, record: str = "") -> None:
    """Add the source ranges of a failing batch to an error, and the record that it fails for if
    that is known, unless a narrower call has done so. A note is part of the traceback, which is all
    that Spark passes on from a worker."""
    if ranges and not any(n.startswith(_RANGES) for n in getattr(error, "__notes__", ())):
        error.add_note(f"{_RANGES}{ranges}")
        if record:
            error.add_note(f"{_RECORD}{record}")


def note_task(error: StreamError, task: str) -> None:
    """Add the Spark task to an error that it reports: ``partition.attempt``."""
    error.args[1].setdefault(_TASK, task)


def failed_subtask(error: BaseException | None) -> tuple[int, str] | None:
    """Partition and name of the Spark task that an error came from; None: it names none. Pure."""
    where = error.args[1] if isinstance(error, StreamError) else {}
    named = str(where.get(_TASK, ""))
    partition = named.partition(".")[0]
    return (int(partition), f"task {named}") if partition.isdecimal() else None


def failed_host(error: BaseException) -> str:
    """Host of the Spark task that an error came from; empty: it names none. Pure."""
    where = error.args[1] if isinstance(error, StreamError) else {}
    return str(where.get(_HOST, ""))


def task_failed(
    what: str, error: Exception, *, region: str, attempt_id: int, ranges: str = ""
) -> StreamError:
    """A region's work ended by this error, which is its cause if both are in one process.

    Args:
        what: the work that failed.
        error: the caught error.
        region, attempt_id: whose work it is.
        ranges: that it read; those in the error's note are narrower.
    """
    text = "".join(traceback.format_exception(error))
    ranges, record = _noted(text, _RANGES) or ranges, _noted(text, _RECORD)
    python = text.partition(_JAVA_FRAME)[0]  # Java's stack follows
    python = python.partition(_QUERY)[0].rstrip()  # Spark's offsets follow
    if unfit := _unfit_executor(text, raised_in(python), region):
        unfit.__cause__ = error
        return unfit
    lost = _LOST_TASK.search(text)
    failed = StreamError(
        what,
        {
            "region": region,
            "attempt_id": attempt_id,
            **({_TASK: lost[1]} if lost else {}),
            **({_HOST: lost[2]} if lost and lost[2] else {}),
            "error": raised_in(python),
            **({"raised_at": frame} if (frame := _function_at(python)) else {}),
            **({"source_ranges": ranges} if ranges else {}),
            **({"record": record} if record else {}),
            _TRACE: python[-_MOST_OF_TRACE:],
        },
        "Correct the function if one raised it, or skip such records (docs/guide/functions.md). "
        "The region restarts from the last checkpoint, as often as the job tolerates.",
    )
    failed.__cause__ = error
    return failed


def _noted(text: str, name: str) -> str:
    """The newest note of this name in a traceback; empty: there is none."""
    found = [line for line in text.splitlines() if line.startswith(name)]
    return found[-1].removeprefix(name) if found else ""


def _unfit_executor(text: str, raised: str, region: str) -> ConfigError | None:
    """The error if a task could not begin in the executors' Python; a restart would fail, too.

    Errors that a function has handled on the way stand in the text as well, so only the one at its
    end counts.
    """
    for pattern, what in _UNFIT:
        if found := re.search(pattern, raised):
            return _unfit(what, found[1], region)
    found = re.search(_NO_PYTHON, text)
    return (
        None if found is None else _unfit("an executor cannot start this Python", found[1], region)
    )


def _unfit(what: str, found: str, region: str) -> ConfigError:
    return ConfigError(
        what,
        {"found": found, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON"), "region": region},
        "Give all executors the driver's Python and packages, installed or as an archive "
        "(docs/guide/deploy.md).",
    )


def raised_in(text: str) -> str:
    """Type and message of the error at the end of a traceback; the whole text if it has no
    traceback. Pure."""
    found = text.rpartition(_PYTHON_TRACE)[2].strip("\n").splitlines()
    lines = [line for line in found if not line.startswith((_RANGES, _RECORD))]
    message = list(dropwhile(lambda line: line.startswith(" "), lines))
    return " ".join(line.strip() for line in message or lines)[:_MOST_OF_ERROR]


def _function_at(text: str) -> str:
    """File, line and name of the innermost function of the traceback that is neither Sluice's nor a
    library's, so the user's; empty: there is none."""
    newest = text.rpartition(_PYTHON_TRACE)[2]
    own = [
        (path, line, name)
        for path, line, name in _FRAME.findall(newest)
        if not _LIBRARY.search(path) and not _OURS.search(path)
    ]
    return "{}:{} in {}".format(*own[-1]) if own else ""


def in_short(error: BaseException) -> str:
    """Type and text of an error; for failed work without its traceback and remedy. Pure."""
    kind = type(error).__name__
    if isinstance(error, StreamError) and _TRACE in error.args[1]:
        what, where, _ = error.args
        facts = " ".join(f"{key}={value}" for key, value in where.items() if key != _TRACE)
        return f"{kind}: {what} [{facts}]"
    return f"{kind}: {error}"
