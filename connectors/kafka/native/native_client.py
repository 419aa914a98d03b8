"""The common part of our own consumer and producer: settings, events, errors, the end.

librdkafka puts events into a queue instead of calling back, and `serve` takes them in its caller's
thread. So no Python code runs in a thread of librdkafka.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    error_codes,
    with_token_reasons,
)
from sluice.connectors.kafka.native.library import SERVED_CALLBACKS, NativeLibrary
from sluice.runtime.errors import AuthenticationError, StreamError

__all__ = ["CONSUMER", "PRODUCER", "NativeClient", "to_ms"]

# The logger of confluent-kafka's clients.
_librdkafka_log = logging.getLogger("sluice.connectors.kafka.librdkafka")

(_FATAL,) = error_codes("_FATAL")
(_INVALID_ARG,) = error_codes("_INVALID_ARG")

# rd_kafka_type_t
PRODUCER, CONSUMER = 0, 1

_EVENT_DR, _EVENT_LOG, _EVENT_ERROR, _EVENT_STATS, _EVENT_TOKEN = 0x1, 0x4, 0x8, 0x40, 0x100
_CONF_OK = 0
_Token = tuple[str, float, str, Mapping[str, str]]  # value, expiry, principal, extensions
_TEXT_BYTES = 512
_MOST_EVENTS = 1_000  # per call, so that other work gets a turn
# By syslog's numbers: emergency, alert, critical, error, warning, notice, info, debug.
_LEVELS = (
    logging.CRITICAL,
    logging.CRITICAL,
    logging.CRITICAL,
    logging.ERROR,
    logging.WARNING,
    logging.INFO,
    logging.INFO,
    logging.DEBUG,
)


def to_ms(seconds: float) -> int:
    """Return milliseconds for librdkafka's calls; a short time is at least 1 ms."""
    return max(0, round(seconds * 1000)) or int(seconds > 0)


class NativeClient:
    """One ``rd_kafka_t``. Executor; one thread at a time; of no use in a forked child.

    Args:
        config: librdkafka's settings by name, as text, number or bool; ``error_cb``, ``stats_cb``
            and ``oauth_cb`` may be Python functions, called in the thread that polls.
    Raises:
        KafkaException: librdkafka refuses a setting.
        StreamError: ``oauth_cb`` gives no token.
    """

    def __init__(self, library: NativeLibrary, kind: int, config: Mapping[str, Any]) -> None:
        self._address: int | None = None
        self._library = library
        self._kafka = library.kafka  # the end needs it, when modules may be gone
        self._pid = os.getpid()
        self._getpid = os.getpid
        config = with_token_reasons(config)
        self._error_cb: Callable[[KafkaError], None] | None = config.get("error_cb")
        self._oauth_cb: Callable[[str], _Token] | None = config.get("oauth_cb")
        self._stats_cb: Callable[[str], None] | None = config.get("stats_cb")
        events = _EVENT_LOG | _EVENT_ERROR | _EVENT_STATS
        events |= _EVENT_DR if kind == PRODUCER else 0
        events |= _EVENT_TOKEN if self._oauth_cb is not None else 0
        self._address = _new(library, kind, _texts(config), events)
        self._kafka.rd_kafka_set_log_queue(self._address, None)
        self._events: int = self._kafka.rd_kafka_queue_get_main(self._address)
        self.name: str = self._kafka.rd_kafka_name(self._address).decode()
        if self._oauth_cb is not None:
            # Before the first call that waits for a broker: nothing serves events meanwhile.
            try:
                self._set_token(self._oauth_cb(""))
            except BaseException:
                self._destroy()
                raise

    @property
    def address(self) -> int:
        """Address of the ``rd_kafka_t``.

        Raises:
            RuntimeError: the client is closed.
        """
        if self._address is None:
            raise RuntimeError("the client is closed")
        return self._address

    def serve(self, timeout_s: float) -> int:
        """Take events, waiting for the first one; return their number.

        Raises:
            KafkaException: the client failed for good, as in confluent-kafka's ``poll``.
        """
        wait_ms, served = to_ms(timeout_s), 0
        while served < _MOST_EVENTS:
            event = self._address and self._kafka.rd_kafka_queue_poll(self._events, wait_ms)
            if not event:
                break
            try:
                self._take(event)
            finally:
                self._kafka.rd_kafka_event_destroy(event)
            served, wait_ms = served + 1, 0
        return served

    def partitions_of(self, topic: str, timeout_s: float) -> int:
        """Return the number of a topic's partitions; 0: it does not exist, or is unknown.

        Raises:
            KafkaException: no broker answers.
        """
        error = ctypes.c_int32(0)
        count: int = self._library.call.sluice_partitions(
            self.address, topic.encode(), to_ms(timeout_s), ctypes.byref(error)
        )
        self.require(error.value)
        return count

    def require(self, code: int) -> None:
        """Raise for an error code of librdkafka, unless it is 0."""
        if code:
            raise KafkaException(KafkaError(code))

    def require_done(self, error: int | None) -> None:
        """Raise for an ``rd_kafka_error_t``, and free it; None: no error."""
        if not error:
            return
        kafka = self._kafka
        found = KafkaError(
            kafka.rd_kafka_error_code(error),
            (kafka.rd_kafka_error_string(error) or b"").decode(errors="replace"),
            fatal=bool(kafka.rd_kafka_error_is_fatal(error)),
            retriable=bool(kafka.rd_kafka_error_is_retriable(error)),
            txn_requires_abort=bool(kafka.rd_kafka_error_txn_requires_abort(error)),
        )
        kafka.rd_kafka_error_destroy(error)
        raise KafkaException(found)

    def _take(self, event: int) -> None:
        kind = self._kafka.rd_kafka_event_type(event)
        if kind == _EVENT_STATS:
            if self._stats_cb is not None:
                self._stats_cb(self._kafka.rd_kafka_event_stats(event).decode(errors="replace"))
        elif kind == _EVENT_DR:
            self._take_reports(event)
        elif kind == _EVENT_ERROR:
            self._take_error(event)
        elif kind == _EVENT_LOG:
            self._take_line(event)
        elif kind == _EVENT_TOKEN:
            self._renew_token()

    def _take_reports(self, event: int) -> None:
        """Delivery reports; a consumer has none."""

    def _take_error(self, event: int) -> None:
        code = self._kafka.rd_kafka_event_error(event)
        if code == _FATAL:
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            code = self._kafka.rd_kafka_fatal_error(self._address, text, _TEXT_BYTES)
            reason = text.value.decode(errors="replace")
            raise KafkaException(KafkaError(code, reason, fatal=True))
        if self._error_cb is not None:
            content: bytes = self._kafka.rd_kafka_event_error_string(event) or b""
            self._error_cb(KafkaError(code, content.decode(errors="replace")))

    def _renew_token(self) -> None:
        """librdkafka asks after four fifths of a token's life, and every 10 s after a failure."""
        assert self._oauth_cb is not None  # else there is no such event
        try:
            self._set_token(self._oauth_cb(""))
        except StreamError as err:
            failed = self._kafka.rd_kafka_oauthbearer_set_token_failure
            failed(self._address, str(err).encode())

    def _set_token(self, token: _Token) -> None:
        value, expires_at_s, principal, extensions = token
        pairs = [text.encode() for pair in extensions.items() for text in pair]
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._kafka.rd_kafka_oauthbearer_set_token(
            self._address,
            value.encode(),
            int(expires_at_s * 1000),
            principal.encode(),
            (ctypes.c_char_p * len(pairs))(*pairs),
            len(pairs),
            text,
            _TEXT_BYTES,
        )
        if code:
            raise AuthenticationError(
                "the Kafka client refuses the OAuth token",
                {"reason": text.value.decode(errors="replace")},
                "Correct the token function: expires_at_s must be in the future.",
            )

    def _take_line(self, event: int) -> None:
        facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        found = (ctypes.byref(each) for each in (facility, text, level))
        if self._kafka.rd_kafka_event_log(event, *found):
            return
        _librdkafka_log.log(
            _LEVELS[min(max(level.value, 0), len(_LEVELS) - 1)],
            "%s [%s] %s",
            (facility.value or b"").decode(errors="replace"),
            self.name,
            (text.value or b"").decode(errors="replace"),
        )

    def _destroy(self) -> None:
        """End the client. Never in a forked child: there are no threads to wait for."""
        address, self._address = self._address, None
        if address is not None and self._pid == self._getpid():
            self._kafka.rd_kafka_queue_destroy(self._events)
            self._kafka.rd_kafka_destroy(address)

    def __del__(self) -> None:
        """End with the last reference, as confluent-kafka's clients do."""
        self._destroy()


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in config.items()
        if name not in SERVED_CALLBACKS and value is not None
    }


def _new(library: NativeLibrary, kind: int, settings: Mapping[str, str], events: int) -> int:
    kafka = library.kafka
    reason_text = ctypes.create_string_buffer(_TEXT_BYTES)
    conf = kafka.rd_kafka_conf_new()
    for name, value in {**settings, "log.queue": "true"}.items():
        content = value.encode()
        if (
            kafka.rd_kafka_conf_set(conf, name.encode(), content, reason_text, _TEXT_BYTES)
            != _CONF_OK
        ):
            kafka.rd_kafka_conf_destroy(conf)
            reason = reason_text.value.decode(errors="replace")
            raise KafkaException(KafkaError(_INVALID_ARG, reason))
    kafka.rd_kafka_conf_set_events(conf, events)
    address: int | None = kafka.rd_kafka_new(kind, conf, reason_text, _TEXT_BYTES)  # owns conf now
    if address is None:
        code = kafka.rd_kafka_last_error()
        kafka.rd_kafka_conf_destroy(conf)
        raise KafkaException(KafkaError(code, reason_text.value.decode(errors="replace")))
    return address
