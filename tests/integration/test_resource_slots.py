"""The cores of a real session, and tasks that wait for one."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.runtime.spark.run.resource_watch import SparkSlots
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]


def test_a_stage_without_a_core_is_seen_until_one_is_free(
    spark: SparkSession, tmp_path: Path
) -> None:
    slots, go_on = SparkSlots(spark), str(tmp_path / "go-on")
    cores = slots.present()
    assert cores == spark.sparkContext.defaultParallelism
    assert not slots.has_starved_stage()

    def waits(_: object) -> list[int]:
        import os
        import time

        while not os.path.exists(go_on):  # noqa: PTH110 - in a worker
            time.sleep(0.05)  # a task has no event of the test
        return [1]

    def run(tasks: int) -> None:
        spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(waits).collect()

    threads = [threading.Thread(target=run, args=(tasks,)) for tasks in (cores, 1)]
    try:
        for thread in threads:
            thread.start()
        wait_for(slots.has_starved_stage)
        assert slots.present() == cores
    finally:
        Path(go_on).touch()
        for thread in threads:
            thread.join()
    wait_for(lambda: not slots.has_starved_stage())
