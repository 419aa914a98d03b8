"""The compiled code between librdkafka and Arrow, and whether a client can be served by it.

`_hot_path.c` is built with the package where there is a C compiler. It works on the clients that
confluent-kafka has made, so that their security, callbacks and statistics stay theirs: it needs
their ``rd_kafka_t``, which is the first field of such an object. That and the layout of a report's
state are confluent-kafka's own, so only versions that were looked at are worked with, and every
client is checked to be the one that librdkafka itself names as its owner.
"""

import ctypes
import functools
import importlib.machinery
import logging
import sys
from pathlib import Path
from typing import Any

from connectors.kafka._client import (
    CLIENT_VERSION,
    Consumer,
    Producer,
    librdkafka_path,
)
from connectors.kafka.hot_path import HotPath
from runtime.errors import ConfigError

__all__ = ["NativeLibrary", "NativeUnavailableError", "built_file", "client_address", "library_for"]

log = logging.getLogger(__name__)

# The layout of `Handle` and of `struct Producer_msgstate` was read in these versions' sources.
KNOWN_VERSIONS = frozenset({"2.16.1"})
KNOWN_HANDLE_BYTES = 176
_OBJECT_HEAD_BYTES = 16


class NativeUnavailableError(Exception):
    """Why the compiled code cannot be used; never leaves this package."""


def library_for(client: object, hot_path: HotPath) -> "NativeLibrary | None":
    """The compiled code, if this client is to use it; None: the plain path. Executor.

    Raises:
        ConfigError: it was asked for by name, and cannot be had.
    """
    if hot_path is HotPath.PLAIN:
        return None
    try:
        library = library_of_process()
        if isinstance(library, str):
            raise NativeUnavailableError(library)
        library.check(client)
    except NativeUnavailableError as err:
        if hot_path is HotPath.NATIVE:
            raise ConfigError(
                "the native hot path cannot be used",
                {"reason": err, "confluent-kafka": CLIENT_VERSION},
                "Install Sluice where there is a C compiler, or leave hotPath at auto.",
            ) from err
        tell(f"plain: {err}")
        return None
    tell("native")
    return library


@functools.cache
def tell(chosen: str) -> None:
    """Once per process and answer."""
    log.info("hot path chosen: path=%s", chosen)


@functools.cache
def library_of_process() -> "NativeLibrary | str":
    """The library of this process, or why there is none."""
    try:
        _require_known_client()
        built = built_file()
        if built is None:
            return "it was not built; was there a C compiler at the installation?"
        return NativeLibrary(built)
    except NativeUnavailableError as err:
        return str(err)


def built_file() -> Path | None:
    """The compiled library beside this module; None: it was not built."""
    here = Path(__file__)
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    files = (here.with_name(f"_hot_path{suffix}") for suffix in suffixes)
    return next((each for each in files if each.exists()), None)


class NativeLibrary:
    """The compiled functions, as ctypes calls them. One per process; any thread.

    Attributes:
        call: without Python's lock.
        call_locked: with it.
    """

    def __init__(self, built: Path) -> None:
        try:
            self.call: Any = _declared(ctypes.CDLL(str(built)))
            self.call_locked: Any = ctypes.PyDLL(str(built))
        except OSError as err:
            raise NativeUnavailableError(f"it cannot be loaded: {err}") from err
        path = librdkafka_path()
        if path is None:
            raise NativeUnavailableError("confluent-kafka brings no librdkafka of its own")
        missing = self.call.sluice_bind(str(path).encode())
        if missing is not None:
            raise NativeUnavailableError(f"librdkafka lacks {missing.decode()}")
        self._more = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p)
        self._less = ctypes.cast(ctypes.pythonapi.Py_DecRef, ctypes.c_void_p)

    def check(self, client: object) -> None:
        """That `client_address` is right about this client.

        Raises:
            NativeUnavailableError: it is none of confluent-kafka's, or not laid out as known.
        """
        if not isinstance(client, Producer | Consumer):
            raise NativeUnavailableError("the client is not confluent-kafka's")
        if self.call.sluice_opaque(client_address(client)) != id(client):
            raise NativeUnavailableError("librdkafka names another owner of the client")

    def client_name(self, client: object) -> str:
        """The name that librdkafka gave it, such as ``rdkafka#producer-1``."""
        name: bytes = self.call.sluice_name(client_address(client))
        return name.decode()

    def add_references(self, held: object, count: int) -> None:
        """Make native code the owner of so many references of an object; negative: take back."""
        change = self._more if count > 0 else self._less
        self.call_locked.sluice_references(
            change, ctypes.c_void_p(id(held)), ctypes.c_int64(abs(count))
        )


def client_address(client: object) -> int:
    """Of the ``rd_kafka_t`` of a client that `NativeLibrary.check` has passed.

    Raises:
        NativeUnavailableError: it is closed.
    """
    address = ctypes.c_void_p.from_address(id(client) + _OBJECT_HEAD_BYTES).value
    if address is None:
        raise NativeUnavailableError("the client is closed")
    return address


def _require_known_client() -> None:
    if CLIENT_VERSION not in KNOWN_VERSIONS:
        raise NativeUnavailableError(f"confluent-kafka {CLIENT_VERSION} is not a known version")
    sizes = {Producer.__basicsize__, Consumer.__basicsize__}
    if (
        sys.implementation.name != "cpython"
        or ctypes.sizeof(ctypes.c_void_p) != 8
        or object.__basicsize__ != _OBJECT_HEAD_BYTES
        or sizes != {KNOWN_HANDLE_BYTES}
    ):
        raise NativeUnavailableError("this Python lays objects out in another way")


def _declared(library: Any) -> Any:  # noqa: ANN401 - ctypes finds its functions by name
    pointer, text, i32, i64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64
    for name, result, arguments in (
        ("sluice_bind", text, [text]),
        ("sluice_opaque", pointer, [pointer]),
        ("sluice_name", text, [pointer]),
        ("sluice_queue", pointer, [pointer]),
        ("sluice_queue_destroy", None, [pointer]),
        ("sluice_forward", ctypes.c_int, [pointer, text, i32, pointer]),
        ("sluice_consume", i64, [pointer, ctypes.c_int, pointer, i64]),
        ("sluice_destroy", None, [pointer, i64]),
        ("sluice_describe", None, [pointer, i64, pointer, pointer]),
        ("sluice_errstr", text, [pointer]),
        ("sluice_copy", None, [pointer, i64, ctypes.c_int, pointer, pointer, pointer]),
        ("sluice_copy_headers", ctypes.c_int, [pointer, i64, pointer]),
        ("sluice_topic", pointer, [pointer, text]),
        ("sluice_topic_destroy", None, [pointer]),
        ("sluice_produce", i64, [pointer, pointer, pointer, i64, i64, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
