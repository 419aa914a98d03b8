"""How long a stop of a query waits, in Spark."""

import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.spark.microbatch.query_end import stop_query
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"


def test_callback_after_commit_a_stop_waits_for_the_callback_whatever_the_session_says_by_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark goes by what the session has when the query is stopped, not when it was begun: what a
    query is made under does not count."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def callback(_frame: DataFrame, _batch_id: int) -> None:
        began.set()
        assert may_end.wait(PATIENCE_S)
        ended.set()

    stream = spark.readStream.format("rate").load().writeStream.foreachBatch(callback)
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    before = spark.conf.get(STOP_TIMEOUT)
    try:
        assert began.wait(PATIENCE_S)
        spark.conf.set(STOP_TIMEOUT, "1")
        with pytest.raises(Py4JJavaError, match=f"within 1 milliseconds .*{STOP_TIMEOUT}"):
            query.stop()
        threading.Timer(0.5, may_end.set).start()
        stop_query(query, region="orders", timeout_s=PATIENCE_S)
        assert ended.is_set(), "a next attempt would have written beside it"
    finally:
        may_end.set()
        spark.conf.set(STOP_TIMEOUT, before or "0")
        query.stop()
