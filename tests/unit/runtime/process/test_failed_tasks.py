"""What is said of a task whose function raised: its own error, wherever it was caught."""

import pickle
import traceback

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.process.failed_tasks import in_short, raised_in, task_failed


def _raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except (ValueError, KeyError) as err:
        return err


def _trace(error: Exception, cause: Exception | None = None) -> str:
    return "".join(traceback.format_exception(_raised(error, cause)))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (_trace(ValueError("not this time")), "ValueError: not this time"),
        (_trace(KeyError("a"), ValueError("earlier")), "KeyError: 'a'"),
        (_trace(ValueError("one\ntwo")), "ValueError: one two"),
        (_trace(ValueError("one\n  indented")), "ValueError: one indented"),
        ("Job group main.3 was cancelled", "Job group main.3 was cancelled"),
        ("", ""),
    ],
)
def test_the_functions_own_error_is_at_the_end_of_its_traceback(said: str, found: str) -> None:
    """Without the frames, which say where it was called."""
    assert raised_in(said) == found


def test_the_stack_of_java_after_a_traceback_is_left_out() -> None:
    """Spark puts what its worker said first."""
    worker = _trace(ValueError("not this time"))
    error = RuntimeError(f"Lost task 0.0: {worker}\n\tat org.apache.spark.A.b(A.scala:1)\n\tat C.d")
    failed = task_failed("the task failed", error, region="main", attempt_id=3)
    assert failed.args[1]["error"] == "ValueError: not this time"
    assert "org.apache" not in str(failed)
    assert "raise error from cause" in str(failed)
    assert failed.__cause__ is error


def test_what_spark_says_of_its_query_is_left_out() -> None:
    error = RuntimeError("no worker\n=== Streaming Query ===\nIdentifier: x\nState: ACTIVE")
    failed = task_failed("the query failed", error, region="main", attempt_id=3)
    assert failed.args[1]["error"] == "RuntimeError: no worker"
    assert "Identifier" not in str(failed)


def test_failed_work_in_short_is_where_and_what_was_raised() -> None:
    error = _raised(ValueError("no"))
    failed = task_failed("the task failed", error, region="main", attempt_id=3)
    short = "StreamError: the task failed [region=main attempt_id=3 error=ValueError: no]"
    assert in_short(failed) == short


def test_failed_work_crosses_processes_without_the_error_itself() -> None:
    """Whose class only the worker may know."""

    class Local(ValueError):
        pass

    failed = task_failed("the task failed", Local("no"), region="main", attempt_id=3)
    again = pickle.loads(pickle.dumps(failed))
    assert str(again) == str(failed)
    assert again.__cause__ is None


@pytest.mark.parametrize("error", [ValueError("no"), ConfigError("no", {"traceback_s": 1}, "Do.")])
def test_any_other_error_in_short_is_its_type_and_text(error: Exception) -> None:
    """Its remedy, too."""
    assert in_short(error) == f"{type(error).__name__}: {error}"
