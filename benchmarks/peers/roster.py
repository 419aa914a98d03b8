"""The contenders: ours by every engine, and the peers, each a program with the same settings.

A contender reads one topic from its beginning, appends ``!`` to every value and writes to another
topic until it is killed. Common settings are equal: two threads or processes, `read_committed`
input, ``linger.ms`` 20, ``batch.size`` 1,000,000, 1 GiB of Java heap. Only ours use their own
``linger.ms`` (docs/adr/0016).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import environments as env
from sluice.runtime.embedded.java import find_java

__all__ = [
    "CONTENDERS",
    "HEAP",
    "Contender",
    "Order",
    "by_name",
    "flink_sql",
    "kafka_streams",
    "pyflink",
]

_PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
HEAP = "-Xmx1g"
"""Of every peer in Java."""

_EXACTLY_ONCE, _AT_LEAST_ONCE = "exactly once", "at least once"
# The options of Flink's own launcher: its serializers use internals of the JDK.
_FLINK_OPENS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.io",
        "java.net",
        "java.nio",
        "java.text",
        "java.time",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "java.util.concurrent.locks",
        "sun.nio.ch",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run of a contender.

    Attributes:
        bootstrap, source, output: broker and topics.
        directory: empty, for checkpoints and state.
        interval_s: between two commits.
        value_bytes: of the input's records.
        partitions: of both topics.
    """

    bootstrap: str
    source: str
    output: str
    directory: Path
    interval_s: float
    value_bytes: int
    partitions: int

    def topics(self) -> list[str]:
        """The order as options of our programs and of the Python peers."""
        return ["--bootstrap", self.bootstrap, "--input", self.source, "--output", self.output]

    def positional(self) -> list[str]:
        """The order as arguments of the Java peers."""
        interval_ms = f"{self.interval_s * 1000:.0f}"
        return [self.bootstrap, self.source, self.output, str(self.directory), interval_ms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A program under measurement.

    Attributes:
        name: on the command line and in the results.
        label: in tables.
        guarantee: what it promises.
        command: the program; may fetch what it needs at the first call.
        environment: variables added to ours.
        is_ours: shown first, in bold.
        is_here: runs in our own virtual environment, with our modules.
        is_count: counts records per key; all others copy them.
    """

    name: str
    label: str
    command: Callable[[Order], Sequence[str]]
    guarantee: str = _EXACTLY_ONCE
    environment: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = False
    is_here: bool = False
    is_count: bool = False


def _batch(order: Order, most: tuple[int, int]) -> int:
    """Records of a batch, by ``most`` records and bytes of a second."""
    return max(1_000, int(min(most[0], most[1] // order.value_bytes) * order.interval_s))


def _ours(*settings: str, epoch: tuple[int, int] | None = None) -> Callable[[Order], Sequence[str]]:
    """Our pipeline; ``epoch``: most records and bytes of a second of the micro-batch engine."""

    def command(order: Order) -> Sequence[str]:
        capped: list[str] = []
        if epoch is not None:
            capped = ["--max-records", str(_batch(order, epoch))]
        return [
            *(sys.executable, "-u", str(_PROGRAMS / "pipeline.py"), *order.topics()),
            *("--checkpoint", str(order.directory / "checkpoint")),
            *("--progress", str(order.directory / "progress")),
            *("--interval", str(order.interval_s), "--function", "exclaim", *settings, *capped),
        ]

    return command


def _drop_in(kind: str, *settings: str) -> Callable[[Order], Sequence[str]]:
    """A plain Structured Streaming query into our formats."""

    def command(order: Order) -> Sequence[str]:
        limit = ["--max-records", str(_batch(order, _COUNTED_BATCH))] if kind == "count" else []
        return [
            *(sys.executable, "-u", str(_PROGRAMS / "drop_in.py"), *order.topics()),
            *("--directory", str(order.directory), "--interval", str(order.interval_s)),
            *("--kind", kind, *limit, *settings),
        ]

    return command


def _hand_written(*settings: str) -> Callable[[Order], Sequence[str]]:
    def command(order: Order) -> Sequence[str]:
        return [
            *(sys.executable, "-u", str(_PROGRAMS / "peer.py"), *order.topics()),
            *("--partitions", str(order.partitions), "--interval", str(order.interval_s)),
            *("--function", "exclaim", *settings),
        ]

    return command


def _in_c(order: Order) -> Sequence[str]:
    topics = (order.bootstrap, order.source, order.output)
    interval_ms = f"{order.interval_s * 1000:.0f}"
    return [str(env.compiled_c("copy")), *topics, interval_ms, str(order.partitions), "2"]


def flink_sql(program: str, *more: str) -> Callable[[Order], Sequence[str]]:
    """A Java program with Flink's jars; ``more``: its arguments after those of the order."""

    def command(order: Order) -> Sequence[str]:
        libraries = [env.flink_jars(), env.jars(env.FLINK_CONNECTOR)]
        return [*_java(program, libraries, order, _FLINK_OPENS), *more]

    return command


def kafka_streams(program: str, *more: str) -> Callable[[Order], Sequence[str]]:
    """A Java program with the jars of Kafka Streams; ``more``: see `flink_sql`."""

    def command(order: Order) -> Sequence[str]:
        return [*_java(program, [env.jars(env.KAFKA_STREAMS)], order, ()), *more]

    return command


def _java(
    program: str, libraries: Sequence[Path], order: Order, options: Sequence[str]
) -> Sequence[str]:
    classes = env.compiled(program, tuple(libraries))
    class_path = ":".join([str(classes), *(f"{directory}/*" for directory in libraries)])
    java = str(find_java().executable)
    return [java, HEAP, *options, "-cp", class_path, program, *order.positional()]


def _python(name: str, program: str, order: Order, *settings: str) -> Sequence[str]:
    return [
        *(str(env.python(name)), "-u", str(env.PROGRAMS / f"{program}.py"), *order.topics()),
        *("--directory", str(order.directory), "--interval", str(order.interval_s), *settings),
    ]


def pyflink(program: str, *more: str) -> Callable[[Order], Sequence[str]]:
    """A Python program with PyFlink; ``more``: see `flink_sql`."""

    def command(order: Order) -> Sequence[str]:
        connector = next(env.jars(env.FLINK_CONNECTOR).glob("*.jar"))
        return _python(env.FLINK, program, order, "--connector", str(connector), *more)

    return command


def _quix(order: Order) -> Sequence[str]:
    return _python(env.QUIX, "quix_copy", order)


def _spark(order: Order) -> Sequence[str]:
    jars = env.jars(env.SPARK_KAFKA)
    return _python(env.SPARK, "spark_copy", order, "--jars", str(jars))


def _spark_count(order: Order) -> Sequence[str]:
    return [*_spark(order), "--max-records", str(_batch(order, _COUNTED_BATCH))]


# About the records of an epoch of one second on two cores shared with the broker.
_CHAINED_EPOCH = (350_000, 120_000_000)
_TRANSFORM_EPOCH = (200_000, 80_000_000)
_COUNTED_BATCH = (400_000, 120_000_000)

_CONTINUOUS = ("--mode", "chained", "--engine", "continuous", "--regions", "2")

CONTENDERS: Sequence[Contender] = (
    Contender(
        name="sluice-chained",
        label="Sluice, chained, micro-batch",
        command=_ours("--mode", "chained", epoch=_CHAINED_EPOCH),
        is_ours=True,
    ),
    Contender(
        name="sluice-continuous",
        label="Sluice, chained, continuous, 2 regions",
        command=_ours(*_CONTINUOUS),
        is_ours=True,
    ),
    Contender(
        name="sluice-continuous-plain",
        label="Sluice, chained, continuous, 2 regions, without compiled code",
        command=_ours(*_CONTINUOUS, "--hot-path", "plain"),
        is_ours=True,
    ),
    Contender(
        name="sluice-transform",
        label="Sluice, through the JVM (`transform`)",
        command=_ours("--mode", "transform", epoch=_TRANSFORM_EPOCH),
        is_ours=True,
    ),
    Contender(
        name="sluice-chained-weak",
        label="Sluice, chained, micro-batch, at least once",
        command=_ours(*("--mode", "chained", "--guarantee", "at-least-once"), epoch=_CHAINED_EPOCH),
        guarantee=_AT_LEAST_ONCE,
        is_ours=True,
    ),
    Contender(
        name="sluice-continuous-weak",
        label="Sluice, chained, continuous, 2 regions, at least once",
        command=_ours(*_CONTINUOUS, "--guarantee", "at-least-once"),
        guarantee=_AT_LEAST_ONCE,
        is_ours=True,
    ),
    Contender(
        name="drop-in-sql",
        label="Sluice, drop-in query, SQL",
        command=_drop_in("sql"),
        is_ours=True,
    ),
    Contender(
        name="drop-in-sql-lean",
        label="Sluice, drop-in query, SQL, one column and the serial collector",
        command=_drop_in("sql", "--columns", "value binary"),
        environment={
            "PYSPARK_SUBMIT_ARGS": "--conf spark.driver.extraJavaOptions=-XX:+UseSerialGC "
            "pyspark-shell"
        },
        is_ours=True,
    ),
    Contender(
        name="drop-in-arrow",
        label="Sluice, drop-in query, `mapInArrow`",
        command=_drop_in("arrow"),
        is_ours=True,
    ),
    Contender(name="flink-sql", label="Flink 2.2 SQL", command=flink_sql("FlinkSqlCopy")),
    Contender(
        name="pyflink",
        label="PyFlink 2.2 DataStream, Python function",
        command=pyflink("pyflink_copy"),
        environment={"JVM_ARGS": HEAP},
    ),
    Contender(
        name="kafka-streams", label="Kafka Streams 4.3", command=kafka_streams("StreamsCopy")
    ),
    Contender(name="quix", label="Quix Streams 3.28", command=_quix),
    Contender(
        name="spark",
        label="Spark 4.2, its own Kafka source and sink",
        command=_spark,
        guarantee=_AT_LEAST_ONCE,
    ),
    Contender(
        name="by-hand",
        label="confluent-kafka loop, tuned, 2 processes",
        command=_hand_written("--processes", "2"),
        is_here=True,
    ),
    Contender(
        name="by-hand-1",
        label="confluent-kafka loop, tuned, 1 process",
        command=_hand_written("--processes", "1"),
        is_here=True,
    ),
    Contender(
        name="in-c",
        label="librdkafka in C, no more than a copy, 2 threads",
        command=_in_c,
    ),
    Contender(
        name="by-hand-untuned",
        label="confluent-kafka loop, untuned, 2 processes",
        command=_hand_written("--processes", "2", "--fetch-backoff-ms", "1000"),
        is_here=True,
    ),
    Contender(
        name="drop-in-count",
        label="Sluice, drop-in query, count per key",
        command=_drop_in("count"),
        is_ours=True,
        is_count=True,
    ),
    Contender(
        name="flink-count",
        label="Flink 2.2 SQL, count per key",
        command=flink_sql("FlinkSqlCount", "4", "hashmap"),
        is_count=True,
    ),
    Contender(
        name="spark-count",
        label="Spark 4.2, its own Kafka source and sink, count per key",
        command=_spark_count,
        guarantee=_AT_LEAST_ONCE,
        is_count=True,
    ),
)


def by_name(names: Sequence[str]) -> list[Contender]:
    """Contenders in the order of the roster; all when none is named.

    Raises:
        ValueError: there is no such contender.
    """
    unknown = set(names).difference(one.name for one in CONTENDERS)
    if unknown:
        known = ", ".join(one.name for one in CONTENDERS)
        raise ValueError(f"no such contender: {', '.join(sorted(unknown))}; there are {known}")
    return [one for one in CONTENDERS if not names or one.name in names]
