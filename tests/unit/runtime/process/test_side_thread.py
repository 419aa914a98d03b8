"""Side threads, and errors of failed tasks."""

import importlib
import pickle
import re
import threading

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.process.failed_tasks import (
    failed_host,
    failed_subtask,
    in_short,
    task_failed,
)
from sluice.runtime.process.side_thread import SideThread
from tests.kit.waiting import PATIENCE_S, wait_for


class Counting(SideThread):
    """Counts until it is closed, or fails."""

    def __init__(self, *, error: Exception | None = None, stop_s: float = PATIENCE_S) -> None:
        super().__init__("counting", stop_s=stop_s)
        self.count = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._fails = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def fail(self, error: Exception) -> None:
        """As a callback does that is reported a failure while the work continues."""
        self._error = error

    def counted(self) -> int:
        self._require_sound()
        return self.count

    def _work(self) -> None:
        while not self._stopping.wait(0.001):
            self.count += 1
            if self._fails is not None:
                raise self._fails
        assert self.go_on.wait(PATIENCE_S)


def test_it_works_as_long_as_it_is_entered() -> None:
    with Counting() as counting:
        wait_for(lambda: counting.counted() > 2, poll_s=0.001)
    assert not counting.is_running
    counting.close()


def test_what_has_ended_it_is_reported_whoever_asks() -> None:
    with Counting(error=ValueError("no use")) as counting:
        wait_for(lambda: not counting.is_running, poll_s=0.001)
        with pytest.raises(ValueError, match="no use"):
            counting.counted()


def test_what_has_failed_first_is_what_is_reported() -> None:
    """A client that has reported its failure refuses everything afterwards."""
    counting = Counting(error=ValueError("refused now"))
    counting.fail(ValueError("failed before"))
    with counting:
        wait_for(lambda: not counting.is_running, poll_s=0.001)
        with pytest.raises(ValueError, match="failed before"):
            counting.counted()


def test_an_end_waits_no_longer_than_it_is_reported() -> None:
    with Counting(stop_s=0.0) as counting:
        counting.go_on.clear()
    assert counting.is_running
    counting.go_on.set()
    wait_for(lambda: not counting.is_running, poll_s=0.001)


def _raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except (ValueError, KeyError) as err:
        return err


def test_what_spark_says_of_its_query_is_left_out() -> None:
    error = RuntimeError("no worker\n=== Streaming Query ===\nIdentifier: x\nState: ACTIVE")
    failed = task_failed("the query failed", error, region="main", attempt_id=3)
    assert failed.args[1]["error"] == "RuntimeError: no worker"
    assert "Identifier" not in str(failed)


def test_failed_work_in_short_is_where_and_what_was_raised() -> None:
    error = _raised(ValueError("no"))
    failed = task_failed("the task failed", error, region="main", attempt_id=3)
    short = "StreamError: the task failed [region=main attempt_id=3 error=ValueError: no raised_at="
    assert in_short(failed).startswith(short)
    assert re.search(r"test_side_thread\.py:\d+ in _raised\]$", in_short(failed))


def test_failed_work_crosses_processes_without_the_error_itself() -> None:
    class Local(ValueError):
        pass

    failed = task_failed("the task failed", Local("no"), region="main", attempt_id=3)
    again = pickle.loads(pickle.dumps(failed))
    assert str(again) == str(failed)
    assert again.__cause__ is None


@pytest.mark.parametrize(
    ("text", "what", "found"),
    [
        (
            'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n'
            "ModuleNotFoundError: No module named 'sluice'\n\n\tat org.apache.spark.Runner",
            "an executor's Python lacks a module",
            "sluice",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/py": error=2, No such file or directory',
            "an executor cannot start this Python",
            "/opt/py",
        ),
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.11 than that in driver: 3.12, PySpark cannot run.\n\tat org.apache.spark.Runner",
            "an executor has another Python",
            "Python in worker has different version: 3.11 than that in driver: 3.12, "
            "PySpark cannot run.",
        ),
        (
            "ConfigError: an executor has another Sluice [driver=1 executor=2]. Install",
            "an executor has another Sluice",
            "driver=1 executor=2",
        ),
    ],
)
def test_an_executor_without_the_drivers_python_is_a_lasting_error_that_says_so(
    text: str, what: str, found: str
) -> None:
    """Spark passes on the text alone, and a restart of the region would fail in the same way."""
    failed = task_failed("the task failed", ValueError(text), region="main", attempt_id=3)
    assert isinstance(failed, ConfigError)
    assert (failed.args[0], failed.args[1]["found"]) == (what, found)


def test_a_missing_module_that_a_function_has_handled_is_no_fault_of_the_executor() -> None:
    """The region restarts as after any other error of the function."""

    def function() -> None:
        try:
            importlib.import_module("no_such_module")
        except ModuleNotFoundError:
            raise TimeoutError("the fallback did not answer")  # noqa: B904 - as users write it

    with pytest.raises(TimeoutError) as raised:
        function()
    failed = task_failed("the task failed", raised.value, region="main", attempt_id=3)
    assert not isinstance(failed, ConfigError)
    assert failed.args[1]["error"] == "TimeoutError: the fallback did not answer"


@pytest.mark.parametrize(
    ("text", "task", "host"),
    [
        (
            "Lost task 3.1 in stage 5.0 (TID 12) (node-7 executor 1): x",
            (3, "task 3.1 in stage 5.0 (TID 12)"),
            "node-7",
        ),
        ("Lost task 3.1 in stage 5.0 (TID 12): x", (3, "task 3.1 in stage 5.0 (TID 12)"), ""),
        ("the driver fails", None, ""),
    ],
)
def test_the_task_and_the_host_come_from_sparks_text(
    text: str, task: tuple[int, str] | None, host: str
) -> None:
    failed = task_failed("the query failed", RuntimeError(text), region="main", attempt_id=3)
    assert (failed_subtask(failed), failed_host(failed)) == (task, host)
    assert failed_subtask(ValueError("x")) is None
    assert failed_subtask(None) is None
    assert failed_host(ValueError("x")) == ""
