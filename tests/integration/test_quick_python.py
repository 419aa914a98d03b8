"""A source's process as tests start it: it calls Spark back before it imports anything."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.spark_fixture import quick_python
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_SECRET = "a-secret-of-sparks"


def test_a_source_calls_back_before_it_imports_pyspark(tmp_path: Path) -> None:
    """With a PySpark whose import never ends, the secret has been sent all the same."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("import time; time.sleep(3600)\n")
    with socket.create_server(("127.0.0.1", 0)) as spark:
        spark.settimeout(PATIENCE_S)
        process = subprocess.Popen(
            [sys.executable, "-m", "pyspark.sql.streaming.python_streaming_source_runner"],
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}{os.pathsep}{quick_python()}",
                "PYTHON_WORKER_FACTORY_PORT": str(spark.getsockname()[1]),
                "PYTHON_WORKER_FACTORY_SECRET": _SECRET,
            },
        )
        try:
            connection, _ = spark.accept()
            with connection, connection.makefile("rwb") as file:
                connection.settimeout(PATIENCE_S)
                length = int.from_bytes(file.read(4), "big")
                assert file.read(length) == _SECRET.encode()
                file.write((2).to_bytes(4, "big") + b"ok")
                file.flush()
                assert process.poll() is None
        finally:
            process.kill()
            process.wait(PATIENCE_S)
