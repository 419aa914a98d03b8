"""`run_until_end` over handles that end in each way; real jobs: `tests/integration`."""

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.connectors.testing.ending import run_until_end
from sluice.runtime.errors import StreamError, WaitedTooLongError
from sluice.runtime.job.job import Job


def job_that_ends(state: str, *, in_time: bool = True, result: object = "result") -> Job:
    handle = SimpleNamespace(
        name="orders",
        result=result,
        status=lambda: SimpleNamespace(state=state),
        wait=lambda timeout: in_time,
    )
    started: Any = SimpleNamespace(start=lambda: contextlib.nullcontext(handle))
    return cast(Job, SimpleNamespace(until_end=lambda: started))


def test_the_result_of_a_finished_job_is_returned() -> None:
    assert cast(object, run_until_end(job_that_ends("finished"))) == "result"


@pytest.mark.parametrize("result", ["result", None])
def test_a_job_that_another_start_stopped_is_an_error(result: object) -> None:
    """It has not read everything."""
    with pytest.raises(StreamError, match="stopped before its end"):
        run_until_end(job_that_ends("stopped", result=result))


def test_a_job_that_does_not_end_in_time_is_an_error() -> None:
    with pytest.raises(WaitedTooLongError):
        run_until_end(job_that_ends("running", in_time=False))
