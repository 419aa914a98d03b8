"""A process that has imported what tests need of others, and forks one that runs them.

Run by its path, so that nothing of the tree is imported before the fork: the child takes the tree
from the copy that it is told. One line of JSON asks, one answers; it ends with its input. Most of
what a test file costs is such imports: two seconds, of which a fork needs none.
"""

import importlib
import json
import os
import signal
import sys
import time
from typing import Any

WARM = (
    "pytest",
    "_pytest.python",
    "_pytest.unraisableexception",
    "hypothesis.stateful",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pandas",
    "fastavro",
    "pydantic",
    "starlette.applications",
    "prometheus_client",
    "uvicorn.protocols.http.httptools_impl",
    "typer",
    "rich.console",
    "psutil",
    "urllib3",
    "confluent_kafka.admin",
    "kafka.protocol.admin",
    "pyspark.sql.datasource",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.functions",
)


def main() -> None:
    """Serve until the input ends."""
    sys.path.pop(0)  # this file's directory
    if "--warm" in sys.argv:
        for name in WARM:
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(_answer(request)) + "\n")
        sys.stdout.flush()


def _answer(request: dict[str, Any]) -> int | None:
    """pytest's exit code; None: it was killed, or ran out of time."""
    pid = os.fork()
    if pid == 0:
        os._exit(_run(request))
    deadline_s = time.monotonic() + request["timeout_s"]
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if time.monotonic() > deadline_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.02)  # a bound on waitpid would take a signal, and tests use those


def _run(request: dict[str, Any]) -> int:
    code = 70
    try:
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request["path"][0])
        sys.path[:0] = request["path"]
        os.environ.update(request["environment"], PYTHONPATH=os.pathsep.join(request["path"]))
        import pytest

        code = int(pytest.main(request["arguments"]))
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return code


if __name__ == "__main__":
    main()
