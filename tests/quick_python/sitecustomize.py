"""Python runs this before anything else in each process of a Spark that tests start.

Spark's own Python processes would import PySpark out of its archive and compile it each time. And
Spark gives up a source's process that has not called back within 10 s, which no setting changes: on
a busy machine its imports alone take longer. So it calls back first, and imports then.
"""

import os
import sys

_SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"


def _call_back() -> tuple[object, object] | None:
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if not port or not secret or "PYTHON_WORKER_FACTORY_SOCK_PATH" in os.environ:
        return None
    import socket  # the others need none

    connection = socket.create_connection(("127.0.0.1", int(port)))
    file = connection.makefile("rwb", 65536)
    file.write(len(secret.encode()).to_bytes(4, "big") + secret.encode())
    file.flush()
    answer = file.read(int.from_bytes(file.read(4), "big"))
    if answer != b"ok":
        raise ConnectionError(f"Spark's JVM refused its own secret: {answer!r}")
    return file, connection


_called = _call_back() if _SOURCE in sys.orig_argv else None

from sluice.runtime.spark.fast_start.python_daemon import leave_archives  # noqa: E402

leave_archives()

if _called is not None:
    from pyspark import util

    util.local_connect_and_auth = lambda *_: _called
