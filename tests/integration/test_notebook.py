"""Jobs in a real Jupyter kernel: an interrupt ends the cell, and neither the kernel nor the output's
exactness."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat.notebooknode import from_dict

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce, values
from tests.kit.spark_fixture import quick_python
from tests.kit.waiting import PATIENCE_S, join, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.extended,
    pytest.mark.timeout(2400),
    # Jupyter's client leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

DEFINE = """
import os
from pyspark.sql import SparkSession
from sluice import Job, KafkaSink, KafkaSource, fast_start

spark = (
    SparkSession.builder.master("local[2]")
    .config(map=fast_start("local[2]"))
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)

def described(engine="continuous", bounded=False):
    job = Job("notebook", spark, checkpoint_dir=os.environ["CHECKPOINT"], interval_s=0.2,
              engine=engine, regions=1)
    source = KafkaSource(bootstrap_servers=os.environ["BOOTSTRAP"], topics=[os.environ["INPUT"]],
                         bounded=bounded)
    sink = KafkaSink(bootstrap_servers=os.environ["BOOTSTRAP"], topic=os.environ["OUTPUT"],
                     transactional_id_prefix="notebook-" + os.environ["OUTPUT"])
    job.source(source).map_batches(lambda batch: batch).sink(sink)
    return job
"""


def _node(content: dict[str, Any]) -> Any:
    return from_dict(content)  # type: ignore[no-untyped-call]  # has no types


class Kernel:
    """A kernel that runs cells. A cell that raises does not end the notebook."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def run(self, source: str) -> list[Any]:
        """The outputs of a new cell."""
        notebook = self._client.nb
        cell = {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}
        notebook.cells.append(_node(cell | {"execution_count": None}))
        index = len(notebook.cells) - 1
        self._client.execute_cell(notebook.cells[index], index)
        return list(notebook.cells[index].outputs)

    def interrupt(self) -> None:
        """As the button of a notebook: SIGINT to the kernel's process group."""
        asyncio.run(self.manager().interrupt_kernel())

    def manager(self) -> Any:
        """Jupyter's manager of the kernel."""
        return self._client.km


def error_of(outputs: list[Any]) -> tuple[str, str] | None:
    """Name and text of the error that ended a cell."""
    found = [(each["ename"], each["evalue"]) for each in outputs if each.output_type == "error"]
    return found[0] if found else None


def text_of(outputs: list[Any]) -> str:
    """All that a cell shows as text."""
    texts = [each.get("text", "") for each in outputs]
    return "".join((*texts, *(each.get("data", {}).get("text/plain", "") for each in outputs)))


class Topics:
    """The topics of a notebook's job."""

    def __init__(self, kafka: EmbeddedKafka, topic: TopicFactory) -> None:
        self.bootstrap, self.source, self.sink = kafka.bootstrap, topic(), topic()
        self.given: list[bytes] = []

    def produce(self, count: int) -> None:
        more = [b"%06d" % (len(self.given) + n) for n in range(count)]
        produce(self.bootstrap, self.source, more)
        self.given += more

    def await_all(self) -> None:
        wait_for(lambda: len(values(self.bootstrap, self.sink)) >= len(self.given), poll_s=0.5)

    def open_transactions(self) -> list[str]:
        wire = TransactionWire(KafkaConnection(bootstrap_servers=self.bootstrap))
        with contextlib.closing(wire):
            found = wire.list_transactions(
                "notebook-", timeout_s=120.0, states=(TransactionState.ONGOING,)
            )
        return [each.transactional_id for each in found.transactions if self.sink in str(each)]

    def expect_exactly_once(self) -> None:
        assert values(self.bootstrap, self.sink) == self.given
        assert self.open_transactions() == []


@pytest.fixture
def topics(kafka: EmbeddedKafka, topic: TopicFactory) -> Topics:
    return Topics(kafka, topic)


@pytest.fixture
def client(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., NotebookClient]:
    """Makes clients whose kernels find the topics in their environment."""
    environment = {
        "BOOTSTRAP": topics.bootstrap,
        "INPUT": topics.source,
        "OUTPUT": topics.sink,
        "CHECKPOINT": str(tmp_path / "checkpoint"),
        "PYTHONPATH": quick_python(),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return partial(NotebookClient, timeout=None, shutdown_kernel="graceful", kernel_name="python3")


@pytest.fixture
def kernel(client: Callable[..., NotebookClient]) -> Iterator[Kernel]:
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    made = client(_node(notebook), allow_errors=True)
    with made.setup_kernel():
        yield Kernel(made)


def interrupt_after(kernel: Kernel, topics: Topics, count: int) -> threading.Thread:
    """Interrupt once the job has copied all records; more of them are on their way then."""

    def interrupt() -> None:
        topics.await_all()
        topics.produce(count)
        kernel.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_an_interrupt_of_a_run_stops_the_job_and_leaves_the_kernel(
    kernel: Kernel, topics: Topics, engine: str
) -> None:
    """A second run in the same session resumes. The first cell made the session, so PySpark's own
    handler, which cancels all jobs, is in place during the second one as well."""
    topics.produce(500)
    assert error_of(kernel.run(DEFINE)) is None
    for _ in range(2):
        thread = interrupt_after(kernel, topics, 500)
        outputs = kernel.run(f"described({engine!r}).run()")
        join(thread)
        found = error_of(outputs)
        assert found is not None
        assert found[0] == "KeyboardInterrupt"
        assert "has stopped in order; the next start resumes" in found[1]
        assert "records committed" in text_of(outputs)
        assert topics.open_transactions() == []
    outputs = kernel.run(f"described({engine!r}, bounded=True).run()")
    assert error_of(outputs) is None
    assert "JobResult(" in text_of(outputs)
    assert error_of(kernel.run("assert spark.range(3).count() == 3")) is None
    topics.expect_exactly_once()


def test_an_interrupt_of_a_wait_leaves_the_job_running(kernel: Kernel, topics: Topics) -> None:
    """Also in the cell that made the session, where PySpark's handler would cancel all jobs."""
    topics.produce(500)
    thread = interrupt_after(kernel, topics, 500)
    outputs = kernel.run(f"{DEFINE}\nhandle = described().start()\nhandle.wait()")
    join(thread)
    assert error_of(outputs) == (
        "KeyboardInterrupt",
        "the wait ended, and job notebook continues; handle.stop() stops it",
    )
    topics.await_all()
    (shown,) = kernel.run("handle")
    assert "<td>running, " in shown["data"]["text/html"]
    assert "attempts=(" not in text_of(kernel.run("handle.status().last_failure"))
    assert error_of(kernel.run("handle.stop()\nassert handle.wait()")) is None
    topics.expect_exactly_once()


def test_a_kernel_that_ends_stops_its_jobs_in_order(kernel: Kernel, topics: Topics) -> None:
    topics.produce(500)
    kernel.manager().shutdown_wait_time = PATIENCE_S
    assert error_of(kernel.run(f"{DEFINE}\nhandle = described('micro-batch').start()")) is None
    topics.await_all()
    asyncio.run(kernel.manager().shutdown_kernel())
    topics.expect_exactly_once()


def test_a_job_whose_session_is_stopped_fails_and_leaves_nothing_open(
    kernel: Kernel, topics: Topics
) -> None:
    """A new session in the same kernel resumes."""
    topics.produce(500)
    assert error_of(kernel.run(f"{DEFINE}\nhandle = described().start()")) is None
    topics.await_all()
    topics.produce(500)
    found = error_of(kernel.run("spark.stop()\nhandle.wait()"))
    assert found is not None
    assert found[0].endswith("Error")
    (state,) = kernel.run("handle.status().state")
    assert state["data"]["text/plain"] == "'failed'"
    wait_for(lambda: not topics.open_transactions(), what="none is open")
    assert error_of(kernel.run(f"{DEFINE}\ndescribed(bounded=True).run()")) is None
    topics.expect_exactly_once()


def test_the_example_copies_the_paid_orders(
    topics: Topics, client: Callable[..., NotebookClient]
) -> None:
    """Each cell runs, and the second run resumes at the end of the first."""
    orders = [{"id": n, "status": "paid" if n % 2 else "open"} for n in range(1000)]
    topics.given = [json.dumps(order).encode() for order in orders]
    produce(topics.bootstrap, topics.source, topics.given)
    notebook = _node(json.loads(EXAMPLE.read_text("utf-8")))
    for cell in notebook.cells:
        cell.source = "".join(cell.source)
    client(notebook).execute()
    topics.given = topics.given[1::2]
    topics.expect_exactly_once()
    last = "".join(text_of(cell.outputs) for cell in notebook.cells if cell.cell_type == "code")
    assert "'stopped'" in last
    assert "restored_from=None" not in last
