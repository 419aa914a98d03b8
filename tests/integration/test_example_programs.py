"""The examples of daily work, run from their files: what each writes, record by record.

They share the session's Spark and broker, because a program takes a session that is there. The
copying examples, which other checks start from outside, run in `tests/chaos`.
"""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from sluice.connectors.kafka.client.credentials import UnsecuredToken
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from tests.kit.kafka.kafka_fixture import SecureKafka, TopicFactory
from tests.kit.kafka.kafka_records import Record, create_topic, produce, read, values
from tests.unit.connectors.kafka.client.test_tokens import endpoint

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
Run = Callable[..., None]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``examples/{name}.py`` in the session's Spark; its checkpoints are the test's."""

    def started(name: str, *arguments: object, **options: object) -> None:
        named = (text for key, value in options.items() for text in (f"--{key}", value))
        line = [name, *arguments, *named, "--checkpoint", tmp_path / "checkpoint"]
        monkeypatch.setattr(sys, "argv", [*map(str, line), "--interval", "0.2"])
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")

    assert spark
    return started


# --- JSON to Parquet ------------------------------------------------------------------------------

NOW = datetime.now(UTC)
DAYS = [NOW - timedelta(days=age) for age in (2, 1, 0)]  # retention takes records older than 7


def order(number: int, country: str, day: datetime, note: str | None) -> Record:
    fields = {"id": number, "country": country, "amount": f"{number}.50", "note": note}
    text = json.dumps(fields | {"ordered_at": day.isoformat()}).encode()
    return Record(key=b"k", value=text, timestamp_ms=round(day.timestamp() * 1000))


def of_order(number: int, country: str, day: datetime, note: str | None) -> tuple[Any, ...]:
    return (number, country, Decimal(f"{number}.50"), day, note, str(day.date()))


ORDERS: list[tuple[int, str, datetime, str | None]] = [
    (1, "DE", DAYS[0], "gift"),
    (2, "FR", DAYS[0], None),
    (3, "DE", DAYS[1], None),
    (4, "DE", DAYS[2], None),
]
FIELDS = ["id", "country", "amount", "ordered_at", "note", "day"]


def write_orders(kafka: EmbeddedKafka, topic: TopicFactory, run: Run, path: object) -> str:
    source, dead = topic(), topic()
    poison = [Record(value=b"no JSON", headers=(("trace", b"7"),)), Record(value=b'{"id": "x"}')]
    records = [*(order(*given) for given in ORDERS), Record(key=b"k", value=None)]
    produce(kafka.bootstrap, source, [*records[:2], *poison, *records[2:]])
    for _ in range(2):
        run(
            *("json_to_parquet", "--until-end"),
            bootstrap=kafka.bootstrap,
            input=source,
            path=path,
            dead=dead,
        )
    return dead


def test_orders_become_typed_files_and_the_rest_dead_letters(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    """Three readers see each order once; only days that are over are marked as complete."""
    path = tmp_path / "lake"
    dead = write_orders(kafka, topic, run, path)
    expected = [of_order(*given) for given in ORDERS]

    arrow = ds.dataset(path, partitioning="hive").to_table(FIELDS).sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in arrow] == expected
    shown = spark.read.parquet(str(path)).selectExpr(
        "id", "country", "amount", "ordered_at", "note", "string(day)"
    )
    found = [tuple(row) for row in shown.orderBy("id").collect()]
    assert [(*row[:3], row[3].astimezone(UTC), *row[4:]) for row in found] == expected
    query = f"SELECT id, country, amount, ordered_at, note, day::text FROM '{path}/*/*/*.parquet'"
    rows = duckdb.connect().execute(f"{query} ORDER BY id").fetchall()
    assert [(*row[:3], row[3].astimezone(UTC), *row[4:]) for row in rows] == expected

    marked = sorted(str(mark.parent.relative_to(path)) for mark in path.rglob("_SUCCESS"))
    first, second, _ = (str(day.date()) for day in DAYS)
    assert marked == [
        f"day={first}/country=DE",
        f"day={first}/country=FR",
        f"day={second}/country=DE",
    ]
    letters = read(kafka.bootstrap, dead)
    assert [letter.value for letter in letters] == [b"no JSON", b'{"id": "x"}']
    assert letters[0].headers[0] == ("trace", b"7")
    assert dict(letters[1].headers)["sluice.source.offset"] == b"3"


@pytest.mark.extended
def test_orders_become_files_on_hdfs(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run, spark: SparkSession, hdfs: EmbeddedHdfs
) -> None:
    path = f"{hdfs.uri}/lake-{os.getpid()}/orders"
    dead = write_orders(kafka, topic, run, path)
    assert spark.read.parquet(path).count() == len(ORDERS)
    assert len(values(kafka.bootstrap, dead)) == 2


# --- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_are_listed_repaired_and_replayed_once(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output, dead = topic(partitions=2), topic(), topic()
    texts = [b'{"amount": "19.99"}', b'{"amount": "1,50"}', b"no JSON", b'{"amount": "x"}']
    given = [
        Record(key=b"%d" % at, value=text, headers=(("trace", b"%d" % at),), partition=at % 2)
        for at, text in enumerate(texts)
    ]
    produce(kafka.bootstrap, source, given)
    topics = {"bootstrap": kafka.bootstrap, "input": source, "output": output, "dead": dead}

    run("dead_letters", "--until-end", **topics)
    assert values(kafka.bootstrap, output) == [b'{"amount": 1999}']
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run("dead_letters", "--list", **topics)
    rows = capsys.readouterr().out.splitlines()[3:-2]
    cells = sorted([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    no_json, no_number = "Expecting value: line 1 column 1 (char 0)", "could not convert string"
    assert [(*cell[:1], cell[1][:24], *cell[2:]) for cell in cells] == [
        ("ValueError", no_number, source, "1", "0", '{"amount": "1,50"}'),
        ("ValueError", no_number, source, "1", "1", '{"amount": "x"}'),
        ("json.decoder.JSONDecodeError", no_json[:24], source, "0", "1", "no JSON"),
    ]

    for _ in range(2):  # the second one finds nothing new
        run("dead_letters", "--replay", **topics)
    run("dead_letters", "--until-end", **topics)
    again = [record for record in read(kafka.bootstrap, output) if record.key == b"1"]
    assert [(record.value, record.headers) for record in again] == [
        (b'{"amount": 150}', (("trace", b"1"),))
    ]
    assert len(values(kafka.bootstrap, output)) == 2
    assert len(values(kafka.bootstrap, source)) == len(given) + 1
    assert len(values(kafka.bootstrap, dead)) == 3


# --- windows --------------------------------------------------------------------------------------


def sales(*given: tuple[str, str, int]) -> list[Record | bytes]:
    return [
        Record(
            key=key.encode(),
            value=json.dumps({"at": f"2026-01-01T12:{at}Z", "amount": amount}).encode(),
        )
        for key, at, amount in given
    ]


def test_each_minute_is_written_once_and_late_rows_are_counted(
    kafka: EmbeddedKafka, topic: TopicFactory, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = topic(), topic()
    topics = {"bootstrap": kafka.bootstrap, "input": source, "output": output}

    def sums() -> list[tuple[bytes | None, str, float]]:
        found = [
            (record.key, json.loads(record.value or b""))
            for record in read(kafka.bootstrap, output)
        ]
        return sorted((key, value["start"][14:16], value["amount"]) for key, value in found)

    given = sales(("a", "00:10", 5), ("a", "00:50", 7), ("b", "00:30", 1), ("a", "01:20", 2))
    future = Record(key=b"a", value=b'{"at": "2999-01-01T00:00:00Z", "amount": 1}')
    produce(kafka.bootstrap, source, [*given, b"no JSON", future])
    run("spark_windows", "--until-end", **topics)
    assert sums() == [(b"a", "00", 12.0), (b"b", "00", 1.0)]
    assert "late" not in capsys.readouterr().out

    produce(kafka.bootstrap, source, sales(("a", "00:59", 100), ("a", "03:00", 3)))
    run("spark_windows", "--until-end", **topics)
    assert sums() == [(b"a", "00", 12.0), (b"a", "01", 2.0), (b"b", "00", 1.0)]
    assert "1 late rows dropped, 1 in this run" in capsys.readouterr().out


# --- log-in ---------------------------------------------------------------------------------------

CONFLUENT = """# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers={bootstrap}
security.protocol=SASL_SSL
sasl.mechanisms=PLAIN
sasl.username={username}
sasl.password={password}

# Best practice for higher availability in librdkafka clients prior to 1.7
session.timeout.ms=45000
client.id=ccloud-python-client-1
ssl.ca.location={ca_file}
"""
JAVA = """bootstrap.servers = {bootstrap}
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="{username}" \\
    password="{password}";
ssl.truststore.type=PEM
ssl.truststore.location={ca_file}
key.serializer=org.apache.kafka.common.serialization.StringSerializer
schema.registry.url=https://registry.example
"""
OAUTH = """bootstrap.servers={bootstrap}
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url={url}
sasl.oauthbearer.client.id=orders
ssl.ca.location={ca_file}
"""


@contextmanager
def issuer(username: str) -> Iterator[str]:
    token = UnsecuredToken(principal=username, lifetime_s=3600)().value
    answer = json.dumps({"access_token": token, "expires_in": 3600}).encode()
    with endpoint(200, answer) as url:
        yield url


def client_file(text: str, kafka: SecureKafka, directory: Path, **more: str) -> Path:
    file = directory / "client.properties"
    known = {"bootstrap": kafka.bootstrap, "username": kafka.username, "ca_file": kafka.ca_file}
    file.write_text(text.format_map({**known, "password": kafka.password, **more}))
    return file


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(CONFLUENT, id="plain"),
        pytest.param(JAVA, id="scram", marks=pytest.mark.extended),
        pytest.param(OAUTH, id="oauth", marks=pytest.mark.extended),
    ],
)
def test_a_clients_file_of_a_cloud_logs_in(
    secure_kafka: SecureKafka,
    run: Run,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that cloud gives it; a secret may come from the environment in its place."""
    source, output = (create_topic(secure_kafka.plain_bootstrap) for _ in range(2))
    produce(secure_kafka.plain_bootstrap, source, [b"%d" % at for at in range(100)])
    monkeypatch.setenv("KAFKA_HOME", "/opt/kafka")  # is not an option
    with issuer(secure_kafka.username) as url:
        file = client_file(form, secure_kafka, tmp_path, url=url)
        if form is OAUTH:
            monkeypatch.setenv("KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET", "hush")
        run("cloud_login", "--until-end", config=file, input=source, output=output)
    found = values(secure_kafka.plain_bootstrap, output)
    assert found == [b"%d" % at for at in range(100)]


@pytest.mark.extended
def test_a_wrong_password_ends_the_program(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """Exit code 1, one line, and nothing that goes on."""
    topic = create_topic(secure_kafka.plain_bootstrap)
    ended = subprocess.run(
        [
            *(sys.executable, ROOT / "examples" / "cloud_login.py", "--input", topic),
            *("--config", client_file(CONFLUENT, secure_kafka, tmp_path), "--output", topic),
            *("--checkpoint", tmp_path / "checkpoint"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KAFKA_SASL_PASSWORD": "wrong-7731"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("AuthenticationError: ")
    assert "Traceback" not in ended.stderr
    assert "wrong-7731" not in ended.stdout + ended.stderr
