"""Reads a table by Spark with Iceberg's own jar, in a process of its own.

Iceberg's newest jar is for Spark 4.1, and does not load in the Spark of the tests. So this needs a
PySpark of its own, in the cache of `tools.versions`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sluice.runtime.embedded.cache import cache_dir, exclusive
from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums
from tests.kit.waiting import PATIENCE_S

__all__ = ["read_by_spark"]

_PYSPARK = "4.1.4"
_NAME = "iceberg-spark-runtime"
_VERSION = "1.12.0"
_CHECKSUMS = Path(__file__).parents[2] / "data" / f"{_NAME}-{_VERSION}.sha256"
_PROGRAM = """\
import sys
from pyspark.sql import SparkSession
jar, uri, table = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jar)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.catalog.rest", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.rest.type", "rest")
    .config("spark.sql.catalog.rest.uri", uri)
    .getOrCreate()
)
for row in spark.table("rest." + table).toJSON().collect():
    print(row)
"""


def read_by_spark(uri: str, table: str) -> list[dict[str, Any]]:
    """The rows of a table in a REST catalog."""
    artifact = Artifact(
        organisation="org.apache.iceberg",
        name=f"{_NAME}-4.1_2.13",
        version=_VERSION,
        transitive=False,
    )
    checksums = parse_checksums(_CHECKSUMS.read_text("ascii"))
    jars = fetch(Bundle(name=f"{_NAME}-{_VERSION}", artifacts=(artifact,), checksums=checksums))
    own = ("PYSPARK_", "SPARK_", "PYTHONPATH")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    answer = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(next(jars.glob("*.jar"))), uri, table],
        env={**environment, "PYTHONPATH": str(_pyspark())},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


def _pyspark() -> Path:
    target = cache_dir() / "versions" / f"pyspark-{_PYSPARK}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_suffix(".lock"), timeout_s=PATIENCE_S):
        if not (target / "pyspark").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
            subprocess.run([*pip, f"pyspark=={_PYSPARK}"], check=True, timeout=PATIENCE_S)
    return target
