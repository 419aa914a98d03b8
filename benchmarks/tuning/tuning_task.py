"""One worker process under one setting: reads, and writes in transactions. Run by `tuning`.

Without Spark, so that the processor time is only that of the clients and of our code. Prints one
line of JSON.
"""

import argparse
import contextlib
import json
import resource
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

import psutil
import pyarrow as pa

from benchmarks.measuring import topics
from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.connectors.kafka.source.reader import range_reader as reader
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader
from sluice.connectors.kafka.source.reader.streaming_reader import KafkaStreamingReader
from sluice.runtime.contracts import (
    CommitOutcome,
    RegisteredAttempt,
    SinkCoordinator,
    SplitReader,
    TaskScope,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange

__all__ = ["OURS"]

OURS = ("batch.records", "batch.bytes")
"""Settings that are not options of a client."""

_COMMIT_S = 30
_POLL_S = 0.01
_WARM_SHARE = 0.2


class _Registry:
    """Accepts every attempt; the real one calls the driver."""

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry`."""
        del attempt
        return time.monotonic()


class _Memory:
    """The largest memory of this process since a moment; a thread polls it."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._base = self._process.memory_info().rss
        self.most = 0
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        while True:
            self.most = max(self.most, self._process.memory_info().rss - self._base)
            time.sleep(_POLL_S)  # no event reports an allocation


class _Task:
    """The reader and the writers of one region, as in a Spark task."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        options = {f"kafka.{k}": v for k, v in json.loads(args.options).items() if k not in OURS}
        reading = {k: v for k, v in options.items() if args.side == "source"}
        writing = {k: v for k, v in options.items() if args.side == "sink"}
        source = KafkaSource(
            bootstrap_servers=args.bootstrap,
            topics=[args.input],
            columns=args.columns,
            include_headers=False,
            options=reading,
        )
        self.reader = _own(source.reader(), json.loads(args.options))
        self._sink = KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"tuning-{uuid.uuid4().hex}",
            options=writing,
        )
        self._factory = self._sink.writer_factory()
        self.coordinator: SinkCoordinator = self._sink.coordinator()
        self._job_uid = str(uuid.uuid4())

    def writer(self, number: int) -> TransactionalWriter:
        """The writer of an epoch; the epoch before the previous one counts as committed."""
        scope = TaskScope(
            job_uid=self._job_uid,
            operator_id="sink",
            batch=BatchKey(region="r", attempt_id=0, batch_id=number),
            checkpoint_id=number,
            committed_through=number - 1,
            committed_batch=number - 2,
        )
        made = self._factory.open(scope, _Registry())
        assert isinstance(made, TransactionalWriter)
        return made

    def commit(self, entries: list[StateEntry]) -> None:
        """Commit as the driver does after the decision."""
        reports = self.coordinator.committer.commit(entries, timeout_s=_COMMIT_S, after_crash=False)
        if any(report.outcome is not CommitOutcome.COMMITTED for report in reports):
            raise RuntimeError(f"not committed: {reports}")


def _own(made: SplitReader, options: Mapping[str, str]) -> KafkaSplitReader:
    assert isinstance(made, KafkaSplitReader)
    if "batch.records" in options:
        setattr(reader, "BATCH_RECORDS", int(options["batch.records"]))  # noqa: B010 - imported
    if "batch.bytes" in options:
        settings = replace(made.settings, batch_bytes=int(options["batch.bytes"]))
        return replace(made, settings=settings)
    return made


def _splits(args: argparse.Namespace, number: int) -> list[SplitRange]:
    """The ranges of an epoch, one in each partition; empty at the end."""
    connection = KafkaConnection(bootstrap_servers=args.bootstrap)
    ends = topics.ends(connection, args.input)
    share = args.epoch_records // len(ends)
    return [
        SplitRange(
            source_id="s",
            topic=args.input,
            topic_id="",
            partition=partition,
            start_offset=min(end, (number - 1) * share),
            end_offset=min(end, number * share),
        )
        for partition, end in ends.items()
    ]


def _backlog(args: argparse.Namespace) -> dict[str, float]:
    """Read a full topic epoch by epoch; the first epoch does not count."""
    memory = _Memory()
    task = _Task(args)
    records, number = 0, 0
    began_s = cpu_s = 0.0
    while True:
        number += 1
        splits = _splits(args, number)
        count = sum(split.end_offset - split.start_offset for split in splits)
        if not count:
            break
        writer = task.writer(number)
        for batch in task.reader.read(splits):
            writer.write(batch)
        task.commit(writer.pre_commit())
        if number == 1:
            began_s, cpu_s = time.perf_counter(), time.process_time()
        else:
            records += count
    cpu_s = time.process_time() - cpu_s
    return {
        "records": records,
        "per_s": records / (time.perf_counter() - began_s),
        "cpu_s_per_million": cpu_s / records * 1e6,
        "memory_bytes": memory.most,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _paced(args: argparse.Namespace) -> dict[str, float]:
    """Read a topic while it is written, with an epoch each interval."""
    memory = _Memory()
    task = _Task(args)
    splits = [replace(split, end_offset=split.start_offset) for split in _splits(args, 1)]
    records = 0
    began_s = time.monotonic()
    counted: tuple[int, float] | None = None
    with contextlib.closing(KafkaStreamingReader(reader=task.reader).follow(splits, None)) as at:
        number, writer = 1, task.writer(1)
        due_s = began_s + args.interval
        while (now_s := time.monotonic()) < began_s + args.seconds:
            if counted is None and now_s > began_s + args.seconds * _WARM_SHARE:
                counted = (records, time.process_time())
            batch: pa.RecordBatch | None = at.poll()
            if batch is not None:
                records += batch.num_rows
                writer.write(batch)
            if now_s >= due_s:
                due_s = max(due_s + args.interval, now_s)
                writer.end_epoch([], checkpoint_id=number)
                number += 1
                streaming = task.writer(number)
                task.commit(writer.pre_commit())
                writer = streaming
        entries = writer.pre_commit()
        task.commit(entries)
    assert counted is not None
    measured = records - counted[0]
    return {
        "records": measured,
        "cpu_s_per_million": (time.process_time() - counted[1]) / max(1, measured) * 1e6,
        "memory_bytes": memory.most,
    }


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "options", "side"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--columns", nargs="+", required=True, help="of the source")
    parser.add_argument("--epoch-records", type=int, default=100_000)
    parser.add_argument("--interval", type=float, help="seconds; None: a backlog")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    figures = _backlog(args) if args.interval is None else _paced(args)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
