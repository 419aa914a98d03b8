"""The profile assigns processor time to the right process and thread."""

import pytest

from benchmarks.jobs.transform_profile import part_of_process, part_of_thread, spent_between


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Executor task l", "JVM: tasks"),
        ("Executor task i", "JVM: tasks"),
        ("stream executio", "JVM: query (planning, logs)"),
        ("C2 CompilerThre", "JVM: compiling"),
        ("Sweeper thread", "JVM: others"),
    ],
)
def test_threads_are_reported_by_what_linux_keeps_of_their_names(name: str, part: str) -> None:
    assert part_of_thread(name) == part


def test_workers_are_reported_by_their_environment() -> None:
    daemon = ["python", "-m", "sluice.runtime.spark.fast_start.python_daemon", "pyspark.worker"]
    assert part_of_process(daemon, {"SLUICE_WORKERS": "sink"}) == "Python: tasks that write"
    assert part_of_process(daemon, {}) == "Python: tasks that read"
    runner = ["python", "-m", "pyspark.sql.streaming.python_streaming_source_runner"]
    assert part_of_process(runner, {}) == "Python: source runner"


def test_what_has_ended_meanwhile_takes_no_time_back() -> None:
    """The time of an ended thread counts in the sum of its JVM, and in no living thread."""
    before = {
        ("JVM", 1): 10.0,
        ("JVM: tasks", 11): 6.0,
        ("JVM: others", 12): 1.0,
        ("Python: planners", 2): 5.0,
    }
    after = {("JVM", 1): 14.0, ("JVM: others", 12): 2.0, ("JVM: tasks", 13): 2.0}
    assert spent_between(before, after) == {"JVM: tasks": 2.0, "JVM: others": 2.0}
