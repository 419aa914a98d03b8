"""A continuous job with checkpoints on an S3 server, beside one with a local directory."""

import os
import statistics
import time
import uuid

from benchmarks.measuring import topics
from benchmarks.measuring.bench_bucket import BUCKET, bench_bucket
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig
from sluice.runtime.storage.objects.object_client import ObjectClient
from sluice.runtime.storage.objects.object_location import object_location

__all__ = ["measure"]

_WARM_UP = 100_000
_EPOCHS = 15
_PUTS = 200
_RECORD_BYTES = 4_000  # of a checkpoint of few splits
_KINDS = ("local", "s3")


def measure(rig: Rig, *, records: int, repeat: int) -> list[Figure]:
    """Both in turn. The S3 server is a process of this machine, and takes CPU from the job."""
    rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    decisions: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    puts: list[float] = []
    looks: list[float] = []
    with bench_bucket():
        for turn in range(repeat):
            put_ms, look_ms = _request_ms()
            puts.append(put_ms)
            looks.append(look_ms)
            for kind in _KINDS if turn % 2 == 0 else reversed(_KINDS):
                rate, decided_ms = _sample(rig, kind, records)
                rates[kind].append(rate)
                decisions[kind].append(decided_ms)
    beyond = [
        s3 - local - put
        for s3, local, put in zip(decisions["s3"], decisions["local"], puts, strict=True)
    ]
    whole = [s3 - put for s3, put in zip(decisions["s3"], puts, strict=True)]
    return [
        Figure(what="conditional put of a record, alone: p50", runs=puts, unit="ms"),
        Figure(what="look into the next slot, alone: p50", runs=looks, unit="ms"),
        *(
            Figure(what=f"barrier to decision, {kind}: p50", runs=decisions[kind], unit="ms")
            for kind in _KINDS
        ),
        Figure(
            what="barrier to decision beyond the server's put: p50",
            runs=whole,
            unit="ms",
            goal="<= 60",
            most=60,
            note=f"{statistics.median(beyond):.1f} ms more than with a local directory",
        ),
        *(
            Figure(what=f"chained, checkpoints {kind}: warm", runs=rates[kind], unit="records/s")
            for kind in _KINDS
        ),
        Figure(
            what="throughput with S3 over local",
            runs=[s3 / local for s3, local in zip(rates["s3"], rates["local"], strict=True)],
            unit="x",
            goal=">= 0.95",
            least=0.95,
        ),
    ]


def _sample(rig: Rig, kind: str, records: int) -> tuple[float, float]:
    """Records a second of a warm job, and its median time from barrier to decision with little
    data, in milliseconds."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    output = topics.create(rig.connection, "out", partitions=PARTITIONS)
    topics.fill(rig.connection, source, _WARM_UP, value_bytes=100, partitions=PARTITIONS)
    arguments = ["--mode", "chained", "--engine", "continuous", "--interval", "1"]
    if kind == "s3":
        arguments += ["--checkpoint", f"s3://{BUCKET}/{uuid.uuid4().hex}"]
    with rig.run("pipeline", source, output, arguments) as running:
        running.await_committed(_WARM_UP)
        running.copy_more(_WARM_UP)
        before = topics.ends(rig.connection, output)
        running.copy_more(records)
        span = topics.append_span(rig.connection, output, beyond=before)
        known = len(running.epochs_s())
        for _ in range(_EPOCHS):
            running.copy_more(PARTITIONS)
        waits = [line["decided_s"] for line in running.progress() if line["marked_s"] is not None][
            known:
        ]
        return records / span.seconds, statistics.median(waits) * 1000


def _request_ms() -> tuple[float, float]:
    """Medians of the two requests of a decision: it puts the record, and looks into the next
    slot."""
    client = ObjectClient(object_location(f"s3://{BUCKET}/{uuid.uuid4().hex}"))
    data = os.urandom(_RECORD_BYTES)
    puts: list[float] = []
    looks: list[float] = []
    for number in range(_PUTS):
        began_s = time.perf_counter()
        client.create(f"{client.location.prefix}/{number}", data)
        put_s = time.perf_counter()
        client.read(f"{client.location.prefix}/{number + 1}")
        puts.append((put_s - began_s) * 1000)
        looks.append((time.perf_counter() - put_s) * 1000)
    return statistics.median(puts), statistics.median(looks)
