"""Which ``kafka.*`` options exist, and what each is called in librdkafka. Pure.

Spark users write the Java client's names; librdkafka has most of them, some under another name,
and a few not at all. All three are tables here, so that a misspelt option is an error that names
the nearest right one instead of a setting that silently does nothing.

Durations as options spell them: a number, with a unit or without one.
"""

import enum
import re
from collections.abc import Callable, Mapping

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest

__all__ = [
    "PREFIX",
    "Role",
    "check_known",
    "is_no",
    "is_of_consumers",
    "is_sendable",
    "refuse_owned",
    "refuse_weak_acks",
    "seconds_of",
    "translate_names",
]

PREFIX = "kafka."


class Role(enum.Enum):
    """The kind of a client; options of another role are left out of its configuration."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


# librdkafka 2.16, `rd_kafka_conf_properties_show`, without callbacks and deprecated no-ops.
_COMMON = frozenset(
    """
    allow.auto.create.topics api.version.fallback.ms api.version.request
    api.version.request.timeout.ms bootstrap.servers broker.address.family broker.address.ttl
    broker.version.fallback client.dns.lookup client.id client.rack connections.max.idle.ms debug
    enable.metrics.push enable.random.seed enable.ssl.certificate.verification https.ca.location
    https.ca.pem log.connection.close log.thread.name log_level max.in.flight
    max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes
    metadata.broker.list metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy receive.message.max.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url
    sasl.password sasl.username security.protocol socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem
    ssl.sigalgs.list topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse
    """.split()  # noqa: SIM905 - a block of names is easier to read than 130 lines
)
_CONSUMER = frozenset(
    """
    auto.commit.interval.ms auto.offset.reset check.crcs coordinator.query.interval.ms
    enable.auto.commit enable.auto.offset.store enable.partition.eof fetch.error.backoff.ms
    fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms
    partition.assignment.strategy queued.max.messages.kbytes queued.min.messages
    session.timeout.ms
    """.split()  # noqa: SIM905 - a block of names is easier to read than 130 lines
)
_PRODUCER = frozenset(
    """
    acks batch.num.messages batch.size compression.codec compression.level compression.type
    delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee enable.idempotence
    linger.ms message.send.max.retries message.timeout.ms partitioner
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queuing.strategy request.required.acks
    request.timeout.ms retries sticky.partitioning.linger.ms transaction.timeout.ms
    transactional.id
    """.split()  # noqa: SIM905 - a block of names is easier to read than 130 lines
)

_RENAMED: Mapping[str, str] = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "sasl.mechanisms": "sasl.mechanism",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.location": "ssl.ca.location",
}

# A producer's request.timeout.ms in librdkafka bounds only a leader's wait for its followers.
_RENAMED_ELSEWHERE = {"request.timeout.ms": "socket.timeout.ms"}

# Interpreted by `sluice.connectors.kafka.client.connection`, under Java's name or our own.
_SECURITY = frozenset(
    {
        "sasl.aws.region",
        "sasl.jaas.config",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.token.function",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)

# Java settings without a counterpart whose absence changes nothing that a user can see.
_WITHOUT_EFFECT = frozenset(
    {
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "max.block.ms",
        "max.poll.records",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
    }
)

_SECURED = "org.apache.kafka.common.security.oauthbearer"
_KNOWN_CLASSES = frozenset(
    {
        f"{_SECURED}.OAuthBearerLoginCallbackHandler",
        f"{_SECURED}.secured.OAuthBearerLoginCallbackHandler",
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
    }
)
"""Java classes whose work Sluice does by itself, from the same options."""

_REFUSED: Mapping[str, str] = {
    "interceptor.classes": "Transform the records in Spark: Sluice cannot load Java classes.",
    "key.deserializer": "Deserialise keys in a function or in Spark: they are always bytes.",
    "key.serializer": "Serialise keys in a function or in Spark: they are always bytes.",
    "partitioner.class": "Set the partition column instead: Sluice cannot load Java classes.",
    "sasl.client.callback.handler.class": "Give a token function instead of a Java class.",
    "sasl.login.callback.handler.class": (
        "Give kafka.sasl.oauthbearer.token.function=package.module:function, "
        "or kafka.sasl.oauthbearer.token.endpoint.url, instead of a Java class."
    ),
    "sasl.login.class": "Remove it: Sluice cannot load Java classes.",
    "security.providers": "Remove it: Sluice cannot load Java classes.",
    "ssl.enabled.protocols": "Remove it: OpenSSL's own protocol range is used.",
    "ssl.engine.factory.class": "Remove it: Sluice cannot load Java classes.",
    "ssl.protocol": "Remove it: OpenSSL's own protocol range is used.",
    "value.deserializer": "Deserialise values in a function or in Spark: they are always bytes.",
    "value.serializer": "Serialise values in a function or in Spark: they are always bytes.",
}

_OWNED: Mapping[str, str] = {
    "auto.commit.interval.ms": (
        "Remove it: a source publishes offsets after each committed checkpoint."
    ),
    "auto.offset.reset": "Use the option startingOffsets.",
    "delivery.report.only.error": "Remove it: Sluice counts delivery errors itself.",
    "enable.auto.commit": "Use a source's option commitGroupOffsets.",
    "enable.auto.offset.store": "Remove it: Sluice keeps offsets in its checkpoints.",
    "enable.gapless.guarantee": "Remove it: a failed record fails its epoch in any case.",
    "enable.partition.eof": "Remove it: Sluice needs this event to end its ranges.",
    "group.id": "Use a source's option groupIdPrefix; a sink has no group.",
    "group.instance.id": "Remove it: Sluice assigns partitions itself.",
    "group.protocol": "Remove it: Sluice assigns partitions itself.",
    "group.remote.assignor": "Remove it: Sluice assigns partitions itself.",
    "partition.assignment.strategy": "Remove it: Sluice assigns partitions itself.",
    "queuing.strategy": "Remove it: the rows of a partition keep their order.",
    "transaction.timeout.ms": "Use the option transactionTimeout, which is checked at the start.",
    "transactional.id": "Use the option transactionalIdPrefix.",
}

_KNOWN = (
    _COMMON | _CONSUMER | _PRODUCER | _SECURITY | _WITHOUT_EFFECT | set(_RENAMED) | set(_REFUSED)
)


_EXACTLY_ONCE = "exactly-once"
_NO = frozenset({"false", "f", "0"})
_OF_ALL = frozenset({"all", "-1"})


def is_no(value: str) -> bool:
    """Whether a value of an option means false."""
    return value.strip().lower() in _NO


def check_known(options: Mapping[str, str]) -> None:
    """Refuse misspelt options and those that only a Java client can honour.

    Args:
        options: without the prefix ``kafka.``, lower case.
    Raises:
        ConfigError: names the option and the nearest right one, never a value.
    """
    for name in sorted(options):
        if options[name] in _KNOWN_CLASSES:
            continue
        if name in _REFUSED:
            raise ConfigError(
                "an option of the Java client is not available",
                {"option": PREFIX + name},
                _REFUSED[name],
            )
        if name not in _KNOWN:
            guess = nearest(name, _KNOWN - set(_REFUSED))
            raise ConfigError(
                "unknown Kafka option",
                {"option": PREFIX + name},
                f"Did you mean {PREFIX}{guess}?" if guess else "Remove it.",
            )


def is_of_consumers(name: str) -> bool:
    """Whether only a consumer has this option; in lower case, without the prefix. Pure."""
    return _RENAMED.get(name, name) in _CONSUMER


def is_sendable(text: str) -> bool:
    """Whether a Kafka client can send a text.

    C strings end at their first null, and a lone surrogate has no UTF-8.
    """
    return "\0" not in text and text.encode("utf-8", "replace").decode() == text


def refuse_owned(
    options: Mapping[str, str], *, exactly_once: bool, reads_only: bool = False
) -> None:
    """Refuse settings that Sluice owns, and those that would silently weaken the guarantee.

    Args:
        reads_only: producer options have no effect, so they are accepted.
    Raises:
        ConfigError: names the option and its replacement.
    """
    for name in sorted(options):
        if name in _OWNED:
            raise ConfigError(
                "this Kafka option is set by Sluice", {"option": PREFIX + name}, _OWNED[name]
            )
    if not reads_only and not is_no(options.get("partitioner.ignore.keys", "false")):
        raise ConfigError(
            "records with a key cannot be spread over all partitions",
            {"option": f"{PREFIX}partitioner.ignore.keys"},
            "Remove it, and drop the column key or set the column partition.",
        )
    if not exactly_once:
        return
    _refuse_value(options, "isolation.level", lambda level: level == "read_uncommitted")
    if not reads_only:
        _refuse_value(options, "enable.idempotence", _NO.__contains__)
        refuse_weak_acks(options, guarantee=_EXACTLY_ONCE)


def refuse_weak_acks(options: Mapping[str, str], *, guarantee: str) -> None:
    """Refuse acknowledgements that may precede the loss of what they acknowledge.

    Raises:
        ConfigError: names the option and the guarantee that it would break.
    """
    for name in ("acks", "request.required.acks"):
        # A number has many spellings, and librdkafka takes them all.
        _refuse_value(options, name, lambda acks: acks not in _OF_ALL, guarantee)


def _refuse_value(
    options: Mapping[str, str],
    name: str,
    is_unsafe: Callable[[str], bool],
    guarantee: str = _EXACTLY_ONCE,
) -> None:
    value = options.get(name, "").strip().lower()
    if name in options and is_unsafe(value):
        raise ConfigError(
            f"this setting is unsafe with {guarantee}",
            {"option": PREFIX + name, "value": value},
            "Remove it, or use a weaker guarantee.",
        )


def translate_names(options: Mapping[str, str], role: Role) -> dict[str, str]:
    """The options that apply to ``role``, under librdkafka's names.

    Security options that `sluice.connectors.kafka.client.connection` interprets are left out.
    """
    wanted = _COMMON
    if role is Role.PRODUCER:
        wanted = _COMMON | _PRODUCER
    elif role is Role.CONSUMER:
        wanted = _COMMON | _CONSUMER
    names = _RENAMED if role is Role.PRODUCER else {**_RENAMED, **_RENAMED_ELSEWHERE}
    converted = _CONVERTED if role is Role.PRODUCER else {**_CONVERTED, **_CONVERTED_ELSEWHERE}
    renamed = ((names.get(name, name), name, value) for name, value in options.items())
    return {
        target: _converted(converted.get(name, _same), name, value)
        for target, name, value in renamed
        if target in wanted
    }


def _converted(convert: Callable[[str], str], name: str, value: str) -> str:
    try:
        return convert(value)
    except ValueError:
        raise ConfigError(
            "the value of a Kafka option is not a number",
            {"option": PREFIX + name, "value": value},
            "Give a number without a unit.",
        ) from None


def _same(value: str) -> str:
    return value


def _bytes_to_kib(value: str) -> str:
    return str(max(1, int(value) // 1024))


def _socket_timeout(value: str) -> str:
    # librdkafka accepts no more.
    return str(min(int(value), 300_000)) if value.strip().isdecimal() else value


def _java_buffer_size(value: str) -> str:
    # Java says -1 for the system's default, librdkafka 0.
    return "0" if value.strip() == "-1" else value


def _endpoint_identification(value: str) -> str:
    # Java switches the check of host names off with an empty value, librdkafka with "none".
    return value.strip().lower() or "none"


_CONVERTED: Mapping[str, Callable[[str], str]] = {
    "buffer.memory": _bytes_to_kib,
    "receive.buffer.bytes": _java_buffer_size,
    "send.buffer.bytes": _java_buffer_size,
    "ssl.endpoint.identification.algorithm": _endpoint_identification,
}
_CONVERTED_ELSEWHERE: Mapping[str, Callable[[str], str]] = {"request.timeout.ms": _socket_timeout}


_UNITS_S = {
    "us": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    "d": 86400.0,
}
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"  # that many digits fit into 64 bits
_DURATION = re.compile(rf"({_NUMBER})\s*({'|'.join(_UNITS_S)})?")


def seconds_of(text: str, *, bare: str) -> float | None:
    """``text``, in any case, in seconds; None where it is no duration. Pure.

    Args:
        bare: unit of a number without one: ``ms`` where Spark reads it so.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None else float(found[1]) * _UNITS_S[found[2] or bare]
