"""Data of ``sluice kafka topics``: a job's repartition topics, from its checkpoint directory."""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from sluice.connectors.kafka.client.client_options import PREFIX, Role
from sluice.connectors.kafka.client.confluent import KafkaException, make_admin, translate
from sluice.connectors.kafka.client.connection import REDACTED, KafkaConnection
from sluice.connectors.kafka.repartition.repartition_topics import describe_topic
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_slot
from sluice.runtime.errors import ConfigError, UnreachableError
from sluice.runtime.job.running_job import running_job
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict

__all__ = ["JobTopicLine", "delete_topics", "list_topics"]

_TOPIC = "repartition_topic"
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTopicLine:
    """A repartition topic of a job.

    Attributes:
        topic: its name.
        source: name of the operator that reads it.
        connection: to its cluster.
        partitions: None: the topic does not exist.
        messages_in_flight: offsets after the last checkpoint's positions; markers count.
    """

    topic: str
    source: str
    connection: KafkaConnection
    partitions: int | None
    messages_in_flight: int


def list_topics(
    path: str, *, bootstrap: str | None, options: Mapping[str, str], timeout_s: float
) -> list[JobTopicLine]:
    """The topics that the newest decision of a checkpoint directory names.

    Raises:
        ConfigError: there are no checkpoints, or a secret is missing.
        StreamError: a broker refuses, or none answers.
    """
    record = _newest(path)
    return [
        _line(record, node.name, own, bootstrap, options, timeout_s)
        for node in record.graph
        if node.kind == "source" and (own := _settings(record, node.name)).get(_TOPIC)
    ]


def delete_topics(
    path: str, lines: Sequence[JobTopicLine], *, force: bool, timeout_s: float
) -> None:
    """Delete these topics. The job cannot start from its checkpoints after that.

    Raises:
        ConfigError: the job runs; or rows are in flight, and ``force`` is not set.
    """
    if _is_running(path):
        raise ConfigError(
            "the job runs, and needs its repartition topics",
            {"path": path},
            "Stop it first: sluice job stop.",
        )
    unread = {line.topic: line.messages_in_flight for line in lines if line.messages_in_flight}
    if unread and not force:
        raise ConfigError(
            "rows are in flight in repartition topics",
            unread,
            "Let the job read them, or use --force to give up the job and these rows.",
        )
    for line in lines:
        if line.partitions is not None:
            _delete(line, timeout_s)


def _newest(path: str) -> CheckpointRecord:
    with command_store(split_slot(path)[0]) as store:
        for checkpoint_id in reversed(store.slots()):
            record = store.read(checkpoint_id)
            if record is not None and record.verdict is Verdict.DECIDED:
                return record
    raise ConfigError(
        "the directory holds no decided checkpoint",
        {"path": path},
        "Give the checkpoint directory of a job.",
    )


def _settings(record: CheckpointRecord, name: str) -> dict[str, str]:
    return {
        key.removeprefix(f"{name}."): value
        for key, value in record.settings.items()
        if key.startswith(f"{name}.")
    }


def _line(
    record: CheckpointRecord,
    name: str,
    own: Mapping[str, str],
    bootstrap: str | None,
    options: Mapping[str, str],
    timeout_s: float,
) -> JobTopicLine:
    topic = own[_TOPIC]
    recorded = {key: value for key, value in own.items() if key.startswith(PREFIX)}
    merged = {**recorded, **options}
    if bootstrap is not None:
        merged[f"{PREFIX}bootstrap.servers"] = bootstrap
    hidden = sorted(key for key, value in merged.items() if value == REDACTED)
    if hidden:
        raise ConfigError(
            "an option is a secret, which checkpoints do not hold",
            {"option": hidden[0], "source": name},
            f"Give it by --config-file (a file of key=value lines) or --config {hidden[0]}=….",
        )
    connection = KafkaConnection.of(merged)
    found = describe_topic(connection, topic, timeout_s=timeout_s)
    return JobTopicLine(
        topic=topic,
        source=name,
        connection=connection,
        partitions=None if found is None else found.partitions,
        messages_in_flight=0 if found is None else _in_flight(connection, record, topic, timeout_s),
    )


def _in_flight(
    connection: KafkaConnection, record: CheckpointRecord, topic: str, timeout_s: float
) -> int:
    read = {
        (topic, split.partition): split.end_offset
        for region in record.regions
        for split in region.splits
        if split.topic == topic
    }
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        ends = cluster.log_ends(read, timeout_s=timeout_s)
    return sum(max(0, end.offset - read[key]) for key, end in ends.items())


def _is_running(path: str) -> bool:
    try:
        with running_job(path, answer_s=_ANSWER_S) as client:
            client.status()
    except UnreachableError:
        return False
    return True


def _delete(line: JobTopicLine, timeout_s: float) -> None:
    admin = make_admin(line.connection.librdkafka(Role.ADMIN))
    try:
        admin.delete_topics([line.topic], request_timeout=timeout_s)[line.topic].result(timeout_s)
    except KafkaException as err:
        raise translate(err, {"topic": line.topic}) from err
    except FutureTimeoutError as err:
        raise UnreachableError(
            "the brokers did not confirm a deletion in time",
            {"topic": line.topic, "waited_s": timeout_s},
            "Repeat the command: it shows whether the topic is still there.",
        ) from err
