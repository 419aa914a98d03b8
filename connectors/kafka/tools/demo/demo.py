"""``sluice demo``: a pipeline that is killed half way, started again, and judged.

Starts a real broker, sends live order events, and runs the pipeline as a user would. A
read_committed reader runs during the whole demo, and its records are judged. The pipeline is a
program in a session of its own; nothing of it remains after the demo. ``program/`` links to the
example that it runs; a wheel holds a copy.
"""

import contextlib
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.demo.demo_view import DemoView, Outcome, Phase
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.demo.orders import Loader, order_events
from sluice.connectors.kafka.tools.verify.places import Topic
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.connectors.kafka.tools.verify.verification import Plan, verify
from sluice.runtime.checker import Identity, Record, SpilledPrefix
from sluice.runtime.embedded.program import Program, ProgramSpec, command_of
from sluice.runtime.errors import UnreachableError

__all__ = ["demo"]

_EXAMPLE = Path(__file__).with_name("program") / "kafka_to_kafka.py"
_INPUT, _OUTPUT = "orders", "orders-shouted"
_PARTITIONS = 4
_INTERVAL_S = 1.0
_LIVE_S = 16.0  # how long the live traffic lasts, at most
_LEAST_RATE = 5_000.0  # records/s
_STALL_S = 240.0
_CATCH_UP_S = 120.0
_POLL_S = 0.1
_MEMORY_BYTES = 256 << 20


def demo(
    *,
    records: Annotated[
        int, typer.Option(min=1_000, max=5_000_000, help="Order events to send.")
    ] = 400_000,
    master: Annotated[str, typer.Option(help="Spark master of the pipeline.")] = "local[2]",
    pipeline: Annotated[
        Path,
        typer.Option(
            help="Another program with the command line of examples/kafka_to_kafka.py.",
            exists=True,
            dir_okay=False,
            resolve_path=True,
            show_default=False,
        ),
    ] = _EXAMPLE,
) -> None:
    """Kill a pipeline half way, start it again, and check that nothing is lost or doubled."""
    console = Console(highlight=False)
    # Hides warnings of the clients that pass, such as a coordinator that is still loading.
    logging.getLogger("sluice").addHandler(logging.NullHandler())
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="sluice-demo-") as directory:
        plan = _Plan(pipeline=pipeline, directory=Path(directory), records=records, master=master)
        outcome = _Demo(console, plan).run()
    raise typer.Exit(0 if outcome.is_clean else 1)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the demo like an error, so that everything is deleted."""

    def leave(_: int, __: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The settings of the demo, and the directory of its files."""

    pipeline: Path
    directory: Path
    records: int
    master: str


class _Demo:
    """One run of the demo; everything it starts ends with `run`."""

    def __init__(self, console: Console, plan: _Plan) -> None:
        self._console = console
        self._plan = plan
        self._records = plan.records
        self._checkpoint = plan.directory / "checkpoint"
        self._stack = contextlib.ExitStack()

    def run(self) -> Outcome:
        with self._stack, DemoView(self._console, self._plan.records) as self._view:
            outcome = self._run()
        self._console.print(outcome.title())
        self._console.print(outcome.table())
        return outcome

    def _run(self) -> Outcome:
        self._view.enter(Phase.BROKER)
        broker = self._stack.enter_context(EmbeddedKafka())
        self._connection = KafkaConnection(bootstrap_servers=broker.bootstrap)
        _create_topics(self._connection)
        rate = max(_LEAST_RATE, self._records / _LIVE_S)
        orders = order_events(_INPUT, _PARTITIONS, self._records)
        self._loader = self._stack.enter_context(
            Loader(
                self._connection,
                orders,
                count=self._records,
                rate=rate,
                # Keeps some records for the second run, however fast the first one was.
                held_back=self._records // 4,
            )
        )
        self._seen = self._stack.enter_context(
            SpilledPrefix(self._plan.directory / "seen", _IDENTITY)
        )
        self._observer = self._stack.enter_context(
            Observer(self._connection, _OUTPUT, seen=self._seen)
        )
        self._view.enter(Phase.RUNNING)
        started_s = time.monotonic()
        recovery = self._kill_half_way(broker.bootstrap)
        finished_s = self._finish()
        self._view.enter(Phase.CHECKING)
        return self._judge(recovery, elapsed_s=finished_s - started_s)

    # --- running ------------------------------------------------------------------------------

    def _start(self, bootstrap: str) -> Program:
        arguments = [
            *("--bootstrap", bootstrap, "--input", _INPUT, "--output", _OUTPUT),
            *("--checkpoint", str(self._checkpoint), "--interval", str(_INTERVAL_S)),
            *("--master", self._plan.master),
        ]
        command = command_of(sys.executable, self._plan.pipeline, arguments)
        spec = ProgramSpec(
            command=command,
            log_path=self._plan.directory / "pipeline.log",
            working_dir=self._plan.directory,
        )
        return self._stack.enter_context(Program(spec))

    def _kill_half_way(self, bootstrap: str) -> dict[str, Any]:
        """Returns fields of `Outcome`."""
        program = self._start(bootstrap)
        self._await(program, lambda: self._observer.total >= self._records // 2)
        killed_s, newest = time.monotonic(), _newest_slot(self._checkpoint)
        program.kill()
        self._view.enter(Phase.KILLED)
        restarted_s = time.monotonic()
        self._program = self._start(bootstrap)
        # Records that the first run committed may reach the reader after the kill.
        visible = self._observer.catch_up(timeout_s=_CATCH_UP_S)
        self._loader.release()
        # The new run's first record fences the slot after the last one.
        self._await(self._program, lambda: _newest_slot(self._checkpoint) > newest)
        fenced_s = time.monotonic()
        self._view.enter(Phase.RECOVERING)
        self._await(self._program, lambda: self._observer.total > visible)
        committed_s = self._observer.await_total(visible + 1, timeout_s=1.0)
        self._view.enter(Phase.RUNNING)
        return {
            "visible_at_kill": visible,
            "recovery_s": committed_s - killed_s,
            "spark_start_s": fenced_s - restarted_s,
        }

    def _finish(self) -> float:
        self._await(self._program, lambda: self._loader.is_done and self._is_caught_up())
        finished_s = self._observer.sightings()[-1].at_s
        self._view.enter(Phase.STOPPING)
        self._program.interrupt()
        self._program.await_end(timeout_s=20)
        self._program.kill()
        return finished_s

    def _is_caught_up(self) -> bool:
        return self._observer.total >= self._records

    def _await(self, program: Program, condition: Callable[[], bool]) -> None:
        """Wait and update the display; a pipeline that ends or stalls is an error."""
        progressed_s, visible = time.monotonic(), self._observer.total
        while not condition():
            if program.exit_code is not None:
                raise _failed(program, f"the pipeline ended with exit code {program.exit_code}")
            if self._observer.total != visible:
                progressed_s, visible = time.monotonic(), self._observer.total
            if time.monotonic() - progressed_s > _STALL_S:
                raise _failed(program, f"no record became visible for {_STALL_S:.0f} s")
            self._show()
            time.sleep(_POLL_S)  # update interval of the display
        self._show()

    def _show(self) -> None:
        self._view.show(
            sent=self._loader.sent,
            visible=self._observer.total,
            checkpoint_id=max(_places(self._checkpoint, "_committed"), default=None),
        )

    # --- judging ------------------------------------------------------------------------------

    def _judge(self, recovery: dict[str, Any], *, elapsed_s: float) -> Outcome:
        plan = Plan(
            source=Topic(_INPUT, self._connection),
            output=Topic(_OUTPUT, self._connection),
            mapping=_shouted,
            identity=_IDENTITY,
            transactions=None,
            memory_bytes=_MEMORY_BYTES,
            scratch=self._plan.directory,
            settle_s=20,
        )
        verdict = verify(plan, progress=lambda *_: None).verdict
        self._observer.close()
        per_second = Counter[int]()

        def final() -> Iterator[Record]:
            for record in read_records(self._connection, _OUTPUT):
                per_second[(record.timestamp_ms or 0) // 1000] += 1
                yield record

        return Outcome(
            verdict=verdict,
            prefix=self._seen.check(final()),
            sent=self._records,
            elapsed_s=elapsed_s,
            peak_rate=max(per_second.values(), default=0),
            **recovery,
        )


def _order_of(record: Record) -> bytes | None:
    """The unique name of an event: a record of the same order with another content is corrupted."""
    return next((value for name, value in record.headers if name == "order"), None)


_IDENTITY = Identity(name_of=_order_of)


def _shouted(record: Record) -> tuple[Record]:
    """The output of the example for a record."""
    value = None if record.value is None else record.value + b"!"
    return (record._replace(topic=_OUTPUT, value=value),)


def _create_topics(connection: KafkaConnection) -> None:
    # The broker's clock is in the output, so the rate can be computed from it.
    clocked = {"message.timestamp.type": "LogAppendTime"}
    topics = [
        NewTopic(_INPUT, num_partitions=_PARTITIONS, replication_factor=1),
        NewTopic(_OUTPUT, num_partitions=_PARTITIONS, replication_factor=1, config=clocked),
    ]
    create_topics(connection, topics)


def _places(checkpoint: Path, mark: str) -> Iterator[int]:
    for path in checkpoint.glob(f"chk-*/{mark}"):
        yield int(path.parent.name.removeprefix("chk-"))


def _newest_slot(checkpoint: Path) -> int:
    return max(_places(checkpoint, "_metadata"), default=-1)


def _failed(program: Program, what: str) -> UnreachableError:
    return UnreachableError(
        what, {"log": "\n" + program.log_tail()}, "Read the pipeline's log; nothing keeps running."
    )
