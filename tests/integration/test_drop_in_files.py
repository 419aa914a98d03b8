"""``format("sluice-files")`` in Spark: rows as files, by tasks without a JVM, once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sluice
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import ConfigError
from tests.integration.test_drop_in_sink import finish, records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, unique

pytestmark = pytest.mark.integration

SCHEMA = "value string, place string"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the formats."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


def rows(session: SparkSession, kafka: EmbeddedKafka, topic: str) -> DataFrame:
    """Text columns, and one whose values a path must escape."""
    place = F.concat(F.lit("a/b=ü "), F.col("key").cast("string"))
    texts = records(session, kafka, topic)
    return texts.select(F.col("value").cast("string").alias("value"), place.alias("place"))


def write(frame: DataFrame, target: str, location: Path, **options: str) -> None:
    """Run a query to the end of its input."""
    writer = frame.writeStream.format("sluice-files").options(**options)
    writer = writer.option("checkpointLocation", str(location)).option("path", target)
    finish(writer.trigger(availableNow=True).start())


_OPTIONS = {"csv": {"escape": '"'}}


def numbered(first: int, last: int) -> list[Record]:
    return [Record(value=b"%d" % n, key=b"%d" % (n % 3)) for n in range(first, last)]


@pytest.mark.parametrize(
    "form",
    [
        "parquet",
        pytest.param("json", marks=pytest.mark.extended),
        pytest.param("csv", marks=pytest.mark.extended),
    ],
)
def test_each_row_is_in_one_file_and_a_second_run_adds_what_is_new(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, form: str
) -> None:
    """In Spark's own partition directories, readable by Spark; nothing is left in staging."""
    source, target = topic(partitions=2), tmp_path / "out" / "rows"
    for first, last in ((0, 9), (9, 12)):
        produce(kafka.bootstrap, source, numbered(first, last))
        frame = rows(session, kafka, source)
        options = {"fileFormat": form, "partitionBy": "place"} | _OPTIONS.get(form, {})
        write(frame, str(target), tmp_path / "chk", **options)
    found = session.read.schema(SCHEMA).format(form).load(str(target)).collect()
    wanted = [(str(n), f"a/b=ü {n % 3}") for n in range(12)]
    assert sorted((row.value, row.place) for row in found) == sorted(wanted)
    staging = tmp_path / "out" / ".sluice-staging-rows"
    left = [path.name for path in staging.rglob("*") if path.is_file()]
    assert left == [".sluice-lease"]


@pytest.mark.extended
def test_tasks_write_to_hdfs(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    hdfs: EmbeddedHdfs,
) -> None:
    """Over WebHDFS; the user's process publishes through its JVM."""
    source, target = topic(partitions=2), f"{hdfs.uri}/{unique('lake')}/rows"
    session.sparkContext._jsc.hadoopConfiguration().set(  # noqa: SLF001
        "dfs.namenode.http-address", hdfs.web_uri.removeprefix("http://")
    )
    produce(kafka.bootstrap, source, numbered(0, 6))
    write(rows(session, kafka, source), target, tmp_path / "chk")
    found = session.read.parquet(target).collect()
    assert sorted(row.value for row in found) == [str(n) for n in range(6)]


def test_each_session_has_its_own_time_zone(session: SparkSession, tmp_path: Path) -> None:
    """A second session of the application is given the formats, too; its queries spell instants
    as it would itself, however the first one has it."""
    second = session.newSession()
    second.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(  # noqa: SLF001
        session._jsparkSession  # noqa: SLF001
    )
    sluice.install(second)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"at": "2026-01-01T00:00:00Z", "n": 1}')
    frame = second.readStream.schema("at timestamp, n long").json(str(tmp_path / "in"))
    frame = frame.select("at", "n", F.col("at").alias("again"))
    target = tmp_path / "out" / "rows"
    write(frame, str(target), tmp_path / "chk", fileFormat="json", partitionBy="at")
    (file,) = target.rglob("*.json")
    assert file.parent.name == "at=2026-01-01 09%3A00%3A00"
    assert file.read_text() == '{"n":1,"again":"2026-01-01T00:00:00.000000+00:00"}\n'


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fileFormat": "parket"}, "Did you mean parquet"),
        ({"partitionBy": "palce"}, "Did you mean place"),
        ({"compresion": "gzip"}, "Did you mean compression"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    options: dict[str, str],
    said: str,
) -> None:
    source = topic()
    produce(kafka.bootstrap, source, numbered(0, 1))
    with pytest.raises(ConfigError, match=said):
        write(
            rows(session, kafka, source), str(tmp_path / "out" / "x"), tmp_path / "chk", **options
        )
    assert not (tmp_path / "out").exists()
