"""Spark's Python processes, started faster. Run by Spark's JVM; see `fast_start_settings`.

Spark lets its Python processes import PySpark out of ``pyspark.zip``, which compiles every module
anew in each of them. Where the same PySpark lies unpacked beside it, the daemon of the tasks uses
that, and imports what every task needs once, before it forks the workers.

A region's source has processes of its own, in which no daemon can be put: one that plans it and one
that plans its reads, both forked by Spark's daemons, and one that asks for barriers all along,
which Spark gives up on if it has not called back within 10 s. Each new life of a region begins with
them, so they are prepared the same way, by ``quick_python/sitecustomize.py``.

A task that is cancelled while it asks the daemon for a worker has Spark replace the daemon, and a
daemon that ends takes all workers with it: regions that had nothing to do with the fault lost their
tasks. So a worker that is told to end this way looks whether Spark itself has ended.
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

from sluice.runtime.process.gc_freeze import freeze_lasting

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
"""Connectors name modules here that their tasks need. To import them may start no thread."""

_TASK_RUNNER = "pyspark.worker"
# pyarrow imports pandas when it makes its first array, if it is there.
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
_LOOK_S = 1.0
_FOR_PLANNERS = (
    "pyspark.sql.worker.plan_data_source_read",
    "sluice.runtime.spark.microbatch.job_source",
)


def main() -> None:
    """Prepare this process, and go on as Spark's own daemon."""
    leave_archives()
    if sys.argv[1:2] == [_TASK_RUNNER]:
        import_ahead()
        if not _is_single_threaded():
            # A lock that a thread holds while we fork would never be free in the worker.
            os.execv(sys.executable, [sys.executable, "-m", _SPARKS_DAEMON, *sys.argv[1:]])
    from pyspark import daemon

    if _TASK_RUNNER in sys.modules:
        runner = sys.modules[_TASK_RUNNER]
        runner.main = outliving(runner.main)  # type: ignore[attr-defined]  # a module
    daemon.manager()


Serve = Callable[[BinaryIO, BinaryIO], None]


def outliving(serve: Serve) -> Serve:
    """A worker's main function, for one that ends with Spark and not with its daemon.

    Args:
        serve: runs a task; called again and again, with the two ends of a socket to Spark.
    """

    kept: list[int] = []

    def guarded(task: BinaryIO, answer: BinaryIO) -> None:
        connection = os.dup(task.fileno())  # which stays open between two tasks
        spark = select.poll()
        spark.register(connection, getattr(select, "POLLRDHUP", select.POLLHUP))  # Linux

        def look(_signal: int, _frame: FrameType | None) -> None:
            if spark.poll(0):  # Spark is gone, or does not need this worker any more
                os._exit(1)
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S)

        signal.signal(signal.SIGALRM, look)
        signal.signal(signal.SIGHUP, look)
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
    if is_planner and _UNPREPARED not in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Spark has it for tasks: no thread here
        _import_all(_FOR_PLANNERS)
        if not _is_single_threaded():  # it is about to fork, see `main`
            os.environ[_UNPREPARED] = "1"
            os.execv(sys.executable, words)


def leave_archives() -> None:
    """Take the archives off this process's search path whose content lies unpacked beside them."""
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
    """Entries of the path that hold nothing but what ``home``, an unpacked PySpark, holds too.

    Args:
        search_path: as `sys.path`.
        home: directory of the package ``pyspark``.
        py4j_version: of the unpacked py4j; None: there is none.
    """
    home = home.resolve()  # the way there may lead over a link, in the path but not in Spark's
    library = home / "python" / "lib"
    unpacked = {library / "pyspark.zip", library / f"py4j-{py4j_version}-src.zip"}
    for entry in search_path:
        path = Path(entry).resolve()
        is_jar = path.parent == home / "jars" and path.suffix == ".jar"  # no Python in it
        if is_jar or path in unpacked:
            yield entry


def import_ahead() -> None:
    """Import what every task needs. What cannot be imported is left to the task that wants it."""
    # Takes longer than all else that this module imports, and every Python of Spark's runs it.
    from importlib.metadata import entry_points

    named = [entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)]
    _import_all((*_AHEAD, *named))
    freeze_lasting()
    if "numpy.random" in sys.modules:
        # Python's own generator does this by itself; workers must not draw the same numbers.
        os.register_at_fork(after_in_child=sys.modules["numpy.random"].seed)


def _import_all(modules: Sequence[str]) -> None:
    # Or else importing pyarrow starts a thread, for an allocator that is not in use by default.
    ours = "JE_ARROW_MALLOC_CONF" not in os.environ
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for module in modules:
        with suppress(ImportError):
            import_module(module)
    if ours:
        del os.environ["JE_ARROW_MALLOC_CONF"]


def _version_of(distribution: str, search_path: Sequence[str]) -> str | None:
    """Of the installed one; by its directory's name, which is found faster than its metadata."""
    for entry in search_path:
        for path in Path(entry or ".").glob(f"{distribution}-*.dist-info"):
            return path.name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
    return None


def _is_single_threaded() -> bool:
    tasks = Path("/proc/self/task")  # Linux; elsewhere nothing tells of a library's threads
    return tasks.is_dir() and len(list(tasks.iterdir())) == 1


if __name__ == "__main__":
    main()
