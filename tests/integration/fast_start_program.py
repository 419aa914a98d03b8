"""Started by `test_fast_start`: a session with `fast_start`, and what one Python task saw."""

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

_MASTER = "local[1]"


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task finds in its process."""
    # The function travels by value, and the task's modules are not the driver's.
    import pyspark

    pandas = "pandas" in sys.modules
    imported = "sluice.runtime.spark.tasks.region_tasks" in sys.modules
    for _ in batches:
        pass
    daemon = Path("/proc") / str(os.getppid())
    seen = {
        "daemon": (daemon / "cmdline").read_text().split("\0"),
        "frozen_objects": gc.get_freeze_count(),
        "daemon_threads": len(list((daemon / "task").iterdir())),
        "imported_ahead": imported,
        "pandas_ahead": pandas,
        "pyspark": pyspark.__file__,
        "search_path": sys.path,
        "version": pyspark.__version__,
    }
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(seen)])], ["seen"])


def main() -> None:
    """Print what the task saw; arguments are ``name=value`` settings."""
    settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
    spark = (
        SparkSession.builder.master(_MASTER)
        .config(map={**fast_start(_MASTER), **settings})
        .getOrCreate()
    )
    rows = spark.range(0, 1, 1, 1).mapInArrow(look, "seen string").collect()
    print(rows[0].seen)  # noqa: T201 (the answer)
    spark.stop()


if __name__ == "__main__":
    main()
