"""Starts Spark's Python processes faster. Run by Spark's JVM; see `fast_start_settings`.

Spark's Python processes import PySpark from ``pyspark.zip``, and each of them compiles every module
again. If the same PySpark is also installed unpacked, the tasks' daemon uses that. It imports the
modules that every task needs once, before it forks the workers.

A source has processes of its own that cannot use this daemon. One plans the source and one plans
its reads, both forked by Spark's daemons. One polls for offsets all the time; Spark fails the query
if it has not called back within 10 s. ``quick_python/sitecustomize.py`` prepares them the same way.
Each attempt of a region begins with all three, so their daemons import its modules once. A drop-in
query plans once, so its planners end, and return their memory, instead of waiting idle.

If a task is cancelled while it requests a worker, Spark replaces the daemon, and the end of the
daemon ends all its workers. Regions without any fault lost their tasks that way. So a worker that
gets the signal of its daemon's end first checks whether Spark itself has ended.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from sluice.runtime.process.interpreter import PLAN_ONCE
from sluice.runtime.process.worker_memory import freeze_lasting

__all__ = [
    "ENTRY_POINT_GROUP",
    "import_ahead",
    "leave_archives",
    "main",
    "outliving",
    "prepare",
    "surplus_archives",
]

ENTRY_POINT_GROUP = "sluice.worker_modules"
"""Connectors name modules here that their tasks need. Their import must not start a thread."""

_TASK_RUNNER = "pyspark.worker"
# pyarrow imports pandas with its first array, if pandas is installed.
_SPARKS_DAEMON = "pyspark.daemon"
_PLANNERS = ("pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read")
_UNPREPARED = "SLUICE_UNPREPARED"
_AHEAD = (
    _TASK_RUNNER,
    "pyarrow",
    "pyarrow.compute",
    "pandas",
    "sluice.runtime.spark.microbatch.job_source",
)
_CHECK_S = 1.0
_FOR_PLANNERS = (
    "pyspark.sql.worker.plan_data_source_read",
    "sluice.runtime.spark.microbatch.job_source",
)


def main() -> None:
    """Prepare this process, then run Spark's own daemon."""
    leave_archives()
    if sys.argv[1:2] == [_TASK_RUNNER]:
        import_ahead()
        if not _is_single_threaded():
            # A lock that a thread holds during the fork would never be free in the worker.
            os.execv(sys.executable, [sys.executable, "-m", _SPARKS_DAEMON, *sys.argv[1:]])
    from pyspark import daemon

    if _TASK_RUNNER in sys.modules:
        runner = sys.modules[_TASK_RUNNER]
        runner.main = outliving(runner.main)  # type: ignore[attr-defined]  # a module
    daemon.manager()


Serve = Callable[[BinaryIO, BinaryIO], None]


def outliving(serve: Serve) -> Serve:
    """The main function of a worker that ends with Spark and not with its daemon.

    Args:
        serve: runs a task; called for each task, with the two ends of a socket to Spark.
    """

    kept: list[int] = []

    def guarded(task: BinaryIO, answer: BinaryIO) -> None:
        connection = os.dup(task.fileno())  # it stays open between two tasks
        spark = select.poll()
        spark.register(connection, getattr(select, "POLLRDHUP", select.POLLHUP))  # Linux

        def check(_signal: int, _frame: FrameType | None) -> None:
            if spark.poll(0):  # Spark has ended, or has closed this worker's connection
                os._exit(1)
            signal.setitimer(signal.ITIMER_REAL, _CHECK_S)

        signal.signal(signal.SIGALRM, check)
        signal.signal(signal.SIGHUP, check)
        if kept:
            os.close(kept.pop())
        kept.append(connection)
        serve(task, answer)

    return guarded


def prepare(command: Sequence[str]) -> None:
    """Prepare this process before it begins, if it is one of Spark's.

    Args:
        command: as `sys.orig_argv`.
    """
    words = list(command)
    module = words.index("-m") + 1 if "-m" in words else len(words)
    named = words[module : module + 2]
    if not named or not named[0].startswith("pyspark."):
        return
    leave_archives()
    is_planner = named[0] == _SPARKS_DAEMON and named[-1] in _PLANNERS
    if is_planner and PLAN_ONCE in os.environ:
        _refuse_reuse()
    elif is_planner and _UNPREPARED not in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Spark sets it for tasks: avoids a thread
        _import_all(_FOR_PLANNERS)
        if not _is_single_threaded():  # it will fork, see `main`
            os.environ[_UNPREPARED] = "1"
            os.execv(sys.executable, words)


def _refuse_reuse() -> None:
    """Let each planner that this process forks answer that Spark must not use it again."""
    from pyspark.serializers import SpecialLengths
    from pyspark.sql.worker import utils

    names = vars(utils)
    write: Callable[[int, BinaryIO], None] = names["write_int"]

    def write_int(value: int, answer: BinaryIO) -> None:
        is_last = value == SpecialLengths.END_OF_STREAM
        write(SpecialLengths.END_OF_DATA_SECTION if is_last else value, answer)

    names["write_int"] = write_int


def leave_archives() -> None:
    """Remove archives from the search path if their content is also installed unpacked."""
    files = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    if not any(entry.endswith((".jar", "pyspark.zip", "-src.zip")) for entry in sys.path):
        return  # not one of Spark's processes
    found = PathFinder.find_spec("pyspark", files)
    if found is None or found.origin is None:
        return
    surplus = set(surplus_archives(sys.path, Path(found.origin).parent, _version_of("py4j", files)))
    sys.path[:] = [entry for entry in sys.path if entry not in surplus]
    for entry in surplus:
        sys.path_importer_cache.pop(entry, None)


def surplus_archives(
    search_path: Sequence[str], home: Path, py4j_version: str | None
) -> Iterator[str]:
    """Entries of the path whose content is also in ``home``, an unpacked PySpark.

    Args:
        search_path: as `sys.path`.
        home: directory of the package ``pyspark``.
        py4j_version: of the unpacked py4j; None: there is none.
    """
    home = home.resolve()  # the search path may contain a symbolic link, and Spark's path not
    library = home / "python" / "lib"
    unpacked = {library / "pyspark.zip", library / f"py4j-{py4j_version}-src.zip"}
    for entry in search_path:
        path = Path(entry).resolve()
        is_jar = path.parent == home / "jars" and path.suffix == ".jar"  # no Python in it
        if is_jar or path in unpacked:
            yield entry


def import_ahead() -> None:
    """Import the modules that every task needs; a missing one fails only the task that needs it."""
    # Imported here: it takes long, and every Python process of Spark imports this module.
    from importlib.metadata import entry_points

    named = [entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)]
    _import_all((*_AHEAD, *named))
    freeze_lasting()
    if "numpy.random" in sys.modules:
        # Workers must not draw the same numbers; Python's own generator ensures that itself.
        os.register_at_fork(after_in_child=sys.modules["numpy.random"].seed)


def _import_all(modules: Sequence[str]) -> None:
    # Otherwise pyarrow starts a thread at its import, for an allocator that it does not use.
    ours = "JE_ARROW_MALLOC_CONF" not in os.environ
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for module in modules:
        with suppress(ImportError):
            import_module(module)
    if ours:
        del os.environ["JE_ARROW_MALLOC_CONF"]


def _version_of(distribution: str, search_path: Sequence[str]) -> str | None:
    """The installed version; from a directory's name, which is faster than reading metadata."""
    for entry in search_path:
        for path in Path(entry or ".").glob(f"{distribution}-*.dist-info"):
            return path.name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
    return None


def _is_single_threaded() -> bool:
    tasks = Path("/proc/self/task")  # Linux; other systems do not show a library's threads
    return tasks.is_dir() and len(list(tasks.iterdir())) == 1


if __name__ == "__main__":
    main()
