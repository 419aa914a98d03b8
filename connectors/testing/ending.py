"""`run_until_end`: runs a job in the test until it has read everything present at its start."""

from typing import TYPE_CHECKING

from sluice.runtime.errors import StreamError, WaitedTooLongError
from sluice.runtime.job.job import Job

if TYPE_CHECKING:
    from sluice.runtime.spark.run.spark_engine import JobResult

__all__ = ["run_until_end"]


def run_until_end(job: Job, *, timeout: float = 300.0) -> "JobResult":
    """Run a job up to the last records that its sources have at the start, and end it.

    A job whose sources are not bounded runs as `Job.until_end` describes it: a later run of the
    same job resumes from there.

    Args:
        timeout: seconds.
    Returns:
        A summary, after readers can see all records of the run.
    Raises:
        StreamError: the job failed, or another start of it stopped this one.
        WaitedTooLongError: it did not end in time; it is stopped in order.
    """
    with job.until_end().start() as handle:  # also an interrupt of the test stops it
        if not handle.wait(timeout):
            raise WaitedTooLongError(
                "the job did not end in time",
                {"job": handle.name, "waited_s": timeout, "status": handle.status()},
                "Send fewer records, or raise timeout. The job is stopped in order.",
            )
    status, result = handle.status(), handle.result
    if status.state != "finished" or result is None:
        raise StreamError(
            "the job was stopped before its end",
            {"job": handle.name, "status": status},
            "Start a job once at a time, each test with its own checkpoint directory.",
        )
    return result
