"""The compiled loops, librdkafka beside them, and whether a client can be made with both.

`_hot_path.c` is built with the package if there is a C compiler. librdkafka is the library that
confluent-kafka's wheel ships and has loaded. This package uses none of that package's own objects.
"""

import ctypes
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import CLIENT_VERSION, librdkafka_path
from sluice.runtime.errors import ConfigError

__all__ = ["NativeLibrary", "NativeUnavailableError", "built_file", "library_for"]

log = logging.getLogger(__name__)

# Python functions in a configuration; all other values are text.
SERVED_CALLBACKS = frozenset({"error_cb", "oauth_cb", "stats_cb"})


class NativeUnavailableError(Exception):
    """Why the compiled code cannot be used; never leaves this package."""


def library_for(config: Mapping[str, Any], hot_path: HotPath) -> "NativeLibrary | None":
    """Return the compiled code for a client of this configuration; None: use the plain path.

    Executor.

    Raises:
        ConfigError: ``hot_path`` is ``native``, and the compiled code cannot be used.
    """
    if hot_path is HotPath.PLAIN:
        return None
    try:
        library = library_of_process()
        if isinstance(library, str):
            raise NativeUnavailableError(library)
        _require_settings(config)
    except NativeUnavailableError as err:
        if hot_path is HotPath.NATIVE:
            raise ConfigError(
                "the native hot path cannot be used",
                {"reason": err, "confluent-kafka": CLIENT_VERSION},
                "Install Sluice where there is a C compiler, or leave hotPath at auto.",
            ) from err
        log_choice(f"plain: {err}")
        return None
    log_choice("native")
    return library


@functools.cache
def log_choice(chosen: str) -> None:
    """Log a choice, once per process."""
    log.info("hot path chosen: path=%s", chosen)


@functools.cache
def library_of_process() -> "NativeLibrary | str":
    """Return the library of this process, or the reason why there is none."""
    try:
        built = built_file()
        if built is None:
            return "it was not built: the installation needs a C compiler"
        return NativeLibrary(built)
    except NativeUnavailableError as err:
        return str(err)


def built_file() -> Path | None:
    """The compiled library beside this module; None: it was not built."""
    library = Path(__file__).with_name("_hot_path.so")
    return library if library.exists() else None


def _require_settings(config: Mapping[str, Any]) -> None:
    called = [name for name, value in config.items() if callable(value)]
    unknown = sorted(set(called) - SERVED_CALLBACKS)
    if unknown:
        raise NativeUnavailableError(f"{','.join(unknown)} is a Python function")


class NativeLibrary:
    """The compiled functions, as ctypes calls them: without Python's lock. One per process; any
    thread.

    Attributes:
        call: our loops, ``sluice_…``.
        kafka: librdkafka's public functions, ``rd_kafka_…``.
    """

    def __init__(self, built: Path) -> None:
        path = librdkafka_path()
        if path is None:
            raise NativeUnavailableError("confluent-kafka brings no librdkafka of its own")
        if ctypes.sizeof(ctypes.c_void_p) != 8:
            raise NativeUnavailableError("this Python has no 64-bit pointers")
        try:
            self.call: Any = _declared(ctypes.CDLL(str(built)), _LOOPS)
            self.kafka: Any = _declared(ctypes.CDLL(str(path)), _LIBRDKAFKA)
        except (OSError, AttributeError) as err:
            raise NativeUnavailableError(f"it cannot be loaded: {err}") from err
        missing = self.call.sluice_bind(str(path).encode())
        if missing is not None:
            raise NativeUnavailableError(f"librdkafka lacks {missing.decode()}")


_P, _TEXT, _I32, _I64, _INT = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_int,
)
_Signatures = Mapping[str, tuple[Any, list[Any]]]

_LOOPS: _Signatures = {
    "sluice_bind": (_TEXT, [_TEXT]),
    "sluice_partitions": (_I64, [_P, _TEXT, _INT, _P]),
    "sluice_consume": (_I64, [_P, _INT, _P, _I64, _P]),
    "sluice_destroy": (None, [_P, _I64, _P]),
    "sluice_describe": (None, [_P, _I64, _P, _P]),
    "sluice_errstr": (_TEXT, [_P]),
    "sluice_copy": (None, [_P, _I64, _INT, _P, _P, _P]),
    "sluice_copy_headers": (_INT, [_P, _I64, _P]),
    "sluice_topic": (_P, [_P, _TEXT]),
    "sluice_topic_destroy": (None, [_P]),
    "sluice_produce": (_I64, [_P, _P, _I64, _I64, _I64, _P]),
    "sluice_reports": (_I64, [_P, _P, _I64, _P, _P, _P, _P]),
    "sluice_topic_of": (_TEXT, [_P]),
}

_LIBRDKAFKA: _Signatures = {
    "rd_kafka_abort_transaction": (_P, [_P, _INT]),
    "rd_kafka_assign": (_INT, [_P, _P]),
    "rd_kafka_begin_transaction": (_P, [_P]),
    "rd_kafka_commit_transaction": (_P, [_P, _INT]),
    "rd_kafka_conf_destroy": (None, [_P]),
    "rd_kafka_conf_new": (_P, []),
    "rd_kafka_conf_set": (_INT, [_P, _TEXT, _TEXT, _P, ctypes.c_size_t]),
    "rd_kafka_conf_set_events": (None, [_P, _INT]),
    "rd_kafka_consumer_close": (_INT, [_P]),
    "rd_kafka_destroy": (None, [_P]),
    "rd_kafka_error_code": (_INT, [_P]),
    "rd_kafka_error_destroy": (None, [_P]),
    "rd_kafka_error_is_fatal": (_INT, [_P]),
    "rd_kafka_error_is_retriable": (_INT, [_P]),
    "rd_kafka_error_string": (_TEXT, [_P]),
    "rd_kafka_error_txn_requires_abort": (_INT, [_P]),
    "rd_kafka_event_destroy": (None, [_P]),
    "rd_kafka_event_error": (_INT, [_P]),
    "rd_kafka_event_error_string": (_TEXT, [_P]),
    "rd_kafka_event_log": (_INT, [_P, _P, _P, _P]),
    "rd_kafka_event_stats": (_TEXT, [_P]),
    "rd_kafka_event_type": (_INT, [_P]),
    "rd_kafka_fatal_error": (_INT, [_P, _P, ctypes.c_size_t]),
    "rd_kafka_flush": (_INT, [_P, _INT]),
    "rd_kafka_incremental_assign": (_P, [_P, _P]),
    "rd_kafka_incremental_unassign": (_P, [_P, _P]),
    "rd_kafka_init_transactions": (_P, [_P, _INT]),
    "rd_kafka_last_error": (_INT, []),
    "rd_kafka_message_leader_epoch": (_I32, [_P]),
    "rd_kafka_name": (_TEXT, [_P]),
    "rd_kafka_new": (_P, [_INT, _P, _P, ctypes.c_size_t]),
    "rd_kafka_oauthbearer_set_token": (
        _INT,
        [_P, _TEXT, _I64, _TEXT, ctypes.POINTER(_TEXT), ctypes.c_size_t, _P, ctypes.c_size_t],
    ),
    "rd_kafka_oauthbearer_set_token_failure": (_INT, [_P, _TEXT]),
    "rd_kafka_outq_len": (_INT, [_P]),
    "rd_kafka_purge": (_INT, [_P, _INT]),
    "rd_kafka_query_watermark_offsets": (_INT, [_P, _TEXT, _I32, _P, _P, _INT]),
    "rd_kafka_queue_destroy": (None, [_P]),
    "rd_kafka_queue_get_consumer": (_P, [_P]),
    "rd_kafka_queue_get_main": (_P, [_P]),
    "rd_kafka_queue_length": (ctypes.c_size_t, [_P]),
    "rd_kafka_queue_poll": (_P, [_P, _INT]),
    "rd_kafka_seek_partitions": (_P, [_P, _P, _INT]),
    "rd_kafka_set_log_queue": (_INT, [_P, _P]),
    "rd_kafka_topic_partition_list_add": (_P, [_P, _TEXT, _I32]),
    "rd_kafka_topic_partition_list_destroy": (None, [_P]),
    "rd_kafka_topic_partition_list_new": (_P, [_INT]),
    "rd_kafka_topic_partition_list_set_offset": (_INT, [_P, _TEXT, _I32, _I64]),
    "rd_kafka_topic_partition_set_leader_epoch": (None, [_P, _I32]),
}


def _declared(library: Any, signatures: _Signatures) -> Any:  # noqa: ANN401 - found by name
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
