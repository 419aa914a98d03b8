"""The examples of keyed state, run from their files: what each writes, record by record."""

import itertools
import json
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.testing import kill_and_restart
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

KILLS = ("pre-commit", "pre-commit", "decision")
EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., None]


@pytest.fixture
def run(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs an example in the session's Spark to the end of its input."""

    def started(name: str, *flags: str, **options: str) -> None:
        given = {"bootstrap": kafka.bootstrap, "checkpoint": str(tmp_path / "checkpoint")}
        named = (text for key, value in (given | options).items() for text in (f"--{key}", value))
        monkeypatch.setattr(sys, "argv", [name, *flags, *named, "--until-end", "--interval", "0.2"])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    assert spark
    return started


def keyed(*keys: bytes) -> list[Record]:
    return [Record(key=key, value=b"x") for key in keys]


@pytest.mark.extended
@pytest.mark.parametrize(
    "flags", [(), ("--repartition",), ("--backend", "rocksdb"), ("--regions", "2")]
)
def test_counts_go_on_over_two_runs(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run, flags: tuple[str, ...]
) -> None:
    source, output = topic(partitions=2), topic()
    last: dict[bytes | None, int] = {}
    for given in (keyed(b"a", b"b", b"a"), keyed(b"b", b"c", b"b")):
        produce(kafka.bootstrap, source, given)
        run("keyed_counts", *flags, input=source, output=output)
    found = read(kafka.bootstrap, output)
    for record in found:
        count = int(record.value or b"")
        assert count > last.get(record.key, 0), "a key comes out with a larger count each time"
        last[record.key] = count
    assert last == {b"a": 2, b"b": 3, b"c": 1}


@pytest.mark.extended
@pytest.mark.parametrize("flags", [(), ("--repartition",)])
def test_counts_are_exact_after_kills(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    source, output = topic(partitions=2), topic()
    produce(kafka.bootstrap, source, keyed(*(b"k%d" % (n % 7) for n in range(7_000))))
    killed("keyed_counts", kafka, tmp_path, *flags, input=source, output=output)
    last = {record.key: int(record.value or b"") for record in read(kafka.bootstrap, output)}
    assert last == {b"k%d" % n: 1_000 for n in range(7)}


@pytest.mark.extended
def test_windows_are_exact_after_kills(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    names = {"input": topic(), "output": topic(), "late": topic()}
    given = [at(b"a", f"{n // 100:02}:{n % 60:02}") for n in range(3_000)]
    produce(kafka.bootstrap, names["input"], given)
    killed("windows", kafka, tmp_path, delay="1 minute", **names)
    windows = [json.loads(r.value or b"") for r in read(kafka.bootstrap, names["output"])]
    assert [(each["start"][14:16], each["count"]) for each in windows] == [
        (f"{minute:02}", 100) for minute in range(30)
    ]
    assert read(kafka.bootstrap, names["late"]) == []


@pytest.mark.extended
def test_alerts_are_exact_after_kills(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, output = topic(), topic()
    began_ms = round(time.time() * 1000) - 3_600_000
    amounts = [(b"0.5", b"20", b"600")[n % 3] if n % 2 else b"0.5" for n in range(3_000)]
    produce(
        kafka.bootstrap,
        source,
        [
            Record(key=b"a", value=amount, timestamp_ms=began_ms + n * 1_000)
            for n, amount in enumerate(amounts)
        ],
    )
    killed("fraud", kafka, tmp_path, input=source, output=output)
    expected = sum(
        amount == b"600" and before == b"0.5" for before, amount in itertools.pairwise(amounts)
    )
    found = [record.value for record in read(kafka.bootstrap, output)]
    assert found == [b"600"] * expected


def killed(name: str, kafka: EmbeddedKafka, directory: Path, *flags: str, **options: str) -> None:
    """The example, killed before the pre-commit twice in a row and after a decision, to its end."""
    given = {
        "bootstrap": kafka.bootstrap,
        "checkpoint": str(directory / "checkpoint"),
        "interval": "0.1",
    }
    named = [text for key, value in (given | options).items() for text in (f"--{key}", value)]
    report = kill_and_restart(
        EXAMPLES / f"{name}.py", [*flags, *named, "--until-end"], at=KILLS, timeout=PATIENCE_S
    )
    assert len(report.kills) == len(KILLS)


def at(key: bytes, minute: str) -> Record:
    return Record(key=key, value=json.dumps({"at": f"2026-01-01T12:{minute}Z"}).encode())


def test_windows_come_out_once_and_late_records_go_to_their_topic(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run
) -> None:
    source, output, late = topic(), topic(), topic()
    names = {"input": source, "output": output, "late": late}
    future = Record(key=b"a", value=b'{"at": "2999-01-01T00:00:00Z"}')
    given = [at(b"a", "00:10"), at(b"b", "00:50"), at(b"a", "00:30"), at(b"a", "01:20")]
    produce(kafka.bootstrap, source, [*given, Record(key=b"a", value=b"no JSON")])
    run("windows", **names)
    produce(kafka.bootstrap, source, [at(b"a", "00:59"), at(b"a", "03:00"), future])
    run("windows", **names)

    windows = [(r.key, json.loads(r.value or b"")) for r in read(kafka.bootstrap, output)]
    found = Counter((key, each["start"][14:16], each["count"]) for key, each in windows)
    assert found[b"a", "00", 2] == found[b"b", "00", 1] == found[b"a", "01", 1] == 1
    letters = [letter.value for letter in read(kafka.bootstrap, late)]
    assert letters == [b"no JSON", at(b"a", "00:59").value]


def test_a_large_payment_after_a_small_one_is_reported(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run
) -> None:
    source, output = topic(), topic()
    began_ms = round(time.time() * 1000) - 200_000

    def payment(account: bytes, amount: bytes, second: int) -> Record:
        return Record(key=account, value=amount, timestamp_ms=began_ms + second * 1000)

    given = [
        payment(b"a", b"0.5", 0),
        payment(b"b", b"0.5", 0),
        payment(b"c", b"0.5", 0),
        payment(b"c", b"20", 1),
        payment(b"a", b"501", 59),
        payment(b"a", b"502", 60),
        payment(b"c", b"503", 60),
        payment(b"a", b"0.9", 61),
        payment(b"a", b"504", 121),
        payment(b"b", b"505", 122),
    ]
    produce(kafka.bootstrap, source, given)
    run("fraud", input=source, output=output)
    assert [(r.key, r.value) for r in read(kafka.bootstrap, output)] == [
        (b"a", b"501"),
        (b"a", b"504"),
    ]
