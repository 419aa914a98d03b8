"""Producers without transactions, kept open over the epochs of a worker process."""

import os
import threading
from collections.abc import Callable

from sluice.connectors.kafka.sink.producers.producer_client import Client, serve
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import FencedError

__all__ = ["PlainProducers", "process_plain_producers"]

_Key = tuple[str, str, str]


class PlainProducers:
    """One client per job, sink and region. Executor; called by writers from the task's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[_Key, tuple[int, Client]] = {}
        self._making: dict[_Key, threading.Lock] = {}

    def client(self, scope: TaskScope, make: Callable[[], Client]) -> Client:
        """The client for a task; a new attempt of the region gets a new one.

        Raises:
            FencedError: this process has already seen a later attempt of the region.
        """
        attempt_id, key = scope.batch.attempt_id, _key(scope)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # making a client may take long, and must not delay other regions
            with self._lock:
                known = self._clients.get(key)
            if known is not None and known[0] == attempt_id:
                return known[1]
            if known is not None and known[0] > attempt_id:
                raise FencedError(
                    "a newer attempt of this region has run in this process",
                    {"region": scope.batch.region, "attempt_id": attempt_id},
                    "End this task: a newer attempt has replaced it.",
                )
            if known is not None:
                _close(known[1])
            client = make()
            with self._lock:
                self._clients[key] = (attempt_id, client)
            return client

    def drop(self, scope: TaskScope) -> None:
        """After an error: discards unsent records; the next task gets a new client.

        The client of a later attempt stays: its records belong to another task.
        """
        with self._lock:
            known = self._clients.get(_key(scope))
            if known is None or known[0] != scope.batch.attempt_id:
                return
            del self._clients[_key(scope)]
        _close(known[1])


def _key(scope: TaskScope) -> _Key:
    return (scope.job_uid, scope.operator_id, scope.batch.region)


def _close(client: Client) -> None:
    client.purge()
    while serve(client, 0, lambda _: None):
        pass  # each record's report frees its own data; the rest ends with the object


_of_process = PlainProducers()
_inherited: list[PlainProducers] = []
_pid = os.getpid()


def process_plain_producers() -> PlainProducers:
    """The pool of this process; a forked child leaves its parent's alone (see `process_pools`)."""
    global _of_process, _pid
    if os.getpid() != _pid:
        _inherited.append(_of_process)
        _of_process = PlainProducers()
        _pid = os.getpid()
    return _of_process
