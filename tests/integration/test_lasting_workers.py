"""A worker of Spark ends with Spark, and not with the daemon that forked it."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

_SECRET = b"a secret"
_START_S = PATIENCE_S
_LOOKS_S = 2.5  # it has looked at least twice whether Spark is there


@dataclass(frozen=True)
class Worker:
    """A worker that waits for its task, as Spark's JVM sees it."""

    pid: int
    spark: socket.socket

    @property
    def attempts(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        return False


@dataclass(frozen=True)
class Daemon:
    """Of this test, which is its Spark."""

    process: "subprocess.Popen[bytes]"
    port: int
    sockets: contextlib.ExitStack

    def worker(self) -> Worker:
        spark = socket.create_connection(("127.0.0.1", self.port), timeout=_START_S)
        self.sockets.callback(spark.close)
        (pid,) = struct.unpack("!i", spark.recv(4, socket.MSG_WAITALL))
        spark.sendall(struct.pack("!i", len(_SECRET)) + _SECRET)
        answer = spark.recv(6, socket.MSG_WAITALL)
        assert answer == struct.pack("!i", 2) + b"ok"
        return Worker(pid, spark)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """Started as Spark starts it; it leads a process group of its own, killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.runtime.spark.fast_start.python_daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHON_WORKER_FACTORY_SECRET": _SECRET.decode(),
            "SPARK_REUSE_WORKER": "1",
            "OMP_NUM_THREADS": "1",  # as Spark has it: with other threads the daemon is Spark's own
        },
    )
    with contextlib.ExitStack() as sockets, process:
        assert process.stdout is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        yield Daemon(process, port, sockets)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_worker_outlives_the_daemon_that_spark_has_replaced(daemon: Daemon) -> None:
    """Spark does that when a task is cancelled that waits for a worker; others were at work."""
    worker = daemon.worker()
    _serves(worker)
    daemon.process.terminate()
    daemon.process.wait(_START_S)
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(worker.pid).wait(_LOOKS_S)
    worker.spark.close()
    wait_for(lambda: not worker.attempts, timeout_s=_START_S)


def test_a_worker_ends_when_spark_is_gone(daemon: Daemon) -> None:
    """First its daemon, then the socket: the worker looks from time to time."""
    busy, idle = daemon.worker(), daemon.worker()
    for worker in (busy, idle):
        _serves(worker)
    assert daemon.process.stdin is not None
    os.kill(busy.pid, signal.SIGSTOP)  # as one that is somewhere else than in its socket
    daemon.process.stdin.close()
    daemon.process.wait(_START_S)
    for worker in (busy, idle):
        worker.spark.close()
    os.kill(busy.pid, signal.SIGCONT)
    wait_for(lambda: not busy.attempts and not idle.attempts, timeout_s=_START_S)


def _serves(worker: Worker) -> None:
    """Until it waits in its main function, where it has said what it does about signals."""

    def catches() -> bool:
        with open(f"/proc/{worker.pid}/status") as status:  # noqa: PTH123
            caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
        return bool(int(caught, 16) & (1 << (signal.SIGHUP - 1)))

    wait_for(catches, timeout_s=_START_S)
