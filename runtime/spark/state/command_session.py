"""A Spark of a command's own, on this machine."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from pyspark.sql import SparkSession

from sluice.runtime.model.checkpoint_record import StateSnapshot
from sluice.runtime.spark.session.spark_session import QUERY_SETTINGS, active_session

__all__ = ["command_spark", "state_session"]

_STATE_STORE = "spark.sql.streaming.stateStore."


@contextlib.contextmanager
def command_spark() -> Iterator[SparkSession]:
    """The Spark of this process, or one that ends with the block."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="sluice-state-") as scratch:
        spark = (
            SparkSession.builder.master(f"local[{os.cpu_count()}]")
            .appName("sluice-state")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
            .config("spark.local.dir", scratch)
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def state_session(spark: SparkSession, state: StateSnapshot) -> Iterator[SparkSession]:
    """A session that reads and writes state as the query did that wrote it."""
    session = spark.newSession()
    settings = {
        **QUERY_SETTINGS,
        f"{_STATE_STORE}providerClass": state.provider,
        f"{_STATE_STORE}checkpointFormatVersion": str(state.checkpoint_format_version),
    }
    for key, value in settings.items():
        session.conf.set(key, value)
    with active_session(session):
        yield session
