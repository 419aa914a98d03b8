"""Producers prepared before their epoch, one pool per sink, region and worker process.

A transactional producer takes several round trips to prepare (`TransactionalProducer.prepare`), and
some time to close; neither may delay an epoch. So a background thread prepares the next one while
this one is written, and another thread closes the last one.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sluice.connectors.kafka.sink.handles import TransactionalId
from sluice.connectors.kafka.sink.producers.id_owners import NewOwner, Owner
from sluice.connectors.kafka.sink.producers.producer_errors import (
    LateRequestError,
    NotReadyError,
    UnansweredError,
    UnsentError,
)
from sluice.connectors.kafka.sink.producers.producer_slots import SlotEvent, SlotTable
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import Clock, TaskScope
from sluice.runtime.errors import DeliveryError, FencedError, StreamError, UnreachableError
from sluice.runtime.process.host_clock import age_clock

__all__ = ["Background", "Lease", "Prepare", "ProducerPool", "ProducerPools", "process_pools"]

log = logging.getLogger(__name__)

Background = Callable[[Callable[[], None]], None]
"""Runs a function off the caller's thread. Tests choose another thread."""

Prepare = Callable[[str], TransactionalProducer]
"""Prepares a producer for a transactional id. Blocks up to a timeout; raises `StreamError`: an
`UnreachableError` if `init_transactions` may yet take effect, for any reason."""

_KEEP_ALIVE_S = 1.0
_MOST_LATE = 5  # in a row: then the connection is the cause, and the log reports it
_MAX_IDLE_S = 300.0  # the longest age of metadata in Java's producer


def in_daemon_thread(function: Callable[[], None]) -> None:
    """The `Background` of real processes: a worker may exit while it runs."""
    threading.Thread(target=function, name="sluice-producers", daemon=True).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A ready producer, owned by one writer; release it by `spend` or `abort`."""

    slot: int
    producer: TransactionalProducer


@dataclass(slots=True)
class _Kept:
    """A producer that its background thread serves until ``over``."""

    producer: TransactionalProducer
    since_s: float
    over: threading.Event


class ProducerPool:
    """Producers of one (prefix, job, region and attempt, sink) in one worker process. Executor.

    Writers call it from the task's thread. No id is initialised before its last transaction is over
    (`SlotTable`), and no producer has two transactions.

    Args:
        prefix, scope: of its ids.
        prepare: prepares a producer for one id.
        background: runs work that must not delay an epoch.
        keep_alive_s: interval at which a ready producer is served; None: not necessary.
        clock: monotonic seconds.
        ages: the same, including the time the host was suspended: connections are dropped
            meanwhile.
        owner: of its ids; None: a new one.
    """

    def __init__(
        self,
        *,
        prefix: str,
        scope: TaskScope,
        prepare: Prepare,
        background: Background = in_daemon_thread,
        keep_alive_s: float | None = _KEEP_ALIVE_S,
        clock: Clock = time.monotonic,
        ages: Clock = age_clock,
        owner: Owner | None = None,
    ) -> None:
        self.attempt_id = scope.batch.attempt_id
        self._prefix = prefix
        self._job_uid = scope.job_uid
        self._region = scope.batch.region
        self._owner = owner or NewOwner()
        self._prepare = prepare
        self._background = background
        self._keep_alive_s = keep_alive_s
        self._clock = clock
        self._ages = ages
        self._changed = threading.Condition()
        self._slot_table = SlotTable(self._owner.kept, keep=self._owner.keep)
        self._ready: dict[int, _Kept] = {}
        self._open: dict[int, _Kept] = {}
        self._held: dict[TransactionalProducer, _Kept] = {}
        self._failures = 0
        self._late = 0
        self._failure: StreamError | None = None
        self._is_untold = False  # no task was waiting for a producer at that time
        self._closed = False

    def enter(self, scope: TaskScope) -> None:
        """A task starts; prepares its producers meanwhile."""
        with self._changed:
            for slot in self._slot_table.enter(scope):
                # Its writer died without a call. Its records must not be decided.
                self._slot_table.record(slot, SlotEvent.SPEND)
                self._let_go(self._open.pop(slot))
            self._discard_old()
            self._start(at_least=1)

    def take(self, scope: TaskScope, *, timeout_s: float) -> Lease:
        """A ready producer; at once if one was prepared before.

        Raises:
            StreamError: the error of a preparation, since this call or unreported before it;
                NotReadyError if the time runs out, NoIdLeftError at once.
        """
        deadline = self._clock() + timeout_s
        with self._changed:
            failures = self._failures
            while True:
                self._refuse_closed()
                slot = self._slot_table.take(scope)
                if slot is not None:
                    break
                if self._failure is not None and (self._is_untold or self._failures != failures):
                    self._is_untold = False
                    raise self._failure
                self._start(at_least=1)
                self._slot_table.require_usable_id()
                if not self._changed.wait_for(
                    lambda: (
                        self._ready
                        or self._closed
                        or self._failures != failures
                        or not self._slot_table.has_usable_id  # it was taken, or grew old
                    ),
                    max(0.0, deadline - self._clock()),
                ):
                    raise self._too_late(timeout_s)
            ready = self._open[slot] = self._ready.pop(slot)
            self._start()
        return Lease(slot=slot, producer=ready.producer)

    def end(self, lease: Lease) -> None:
        """Its epoch has ended, and is flushed while the task writes the next one."""
        with self._changed:
            if self._is_open(lease):
                self._slot_table.record(lease.slot, SlotEvent.END)

    def spend(self, lease: Lease) -> None:
        """Its transaction is pre-committed: the id stays unused until that is committed on
        record."""
        self._return(lease, SlotEvent.SPEND)

    def hold(self, lease: Lease) -> None:
        """As `spend`, but the producer stays open, to commit the transaction; call `let_go` after
        that."""
        with self._changed:
            if self._is_open(lease):
                self._slot_table.record(lease.slot, SlotEvent.SPEND)
                self._held[lease.producer] = self._open.pop(lease.slot)

    def let_go(self, lease: Lease) -> None:
        """Its producer is no longer needed; the id stays unused as before."""
        with self._changed:
            kept = self._held.pop(lease.producer, None)
            if kept is not None:
                self._let_go(kept)

    def abort(self, lease: Lease, *, timeout_s: float) -> None:
        """Abort its transaction; without an acknowledgement the sweep does it, and the id is never
        used again."""
        acknowledged = lease.producer.abort(timeout_s=timeout_s)
        self._return(lease, SlotEvent.ABORTED if acknowledged else SlotEvent.GIVEN_UP)

    def return_unused(self, lease: Lease) -> None:
        """No transaction was started with it."""
        self._return(lease, SlotEvent.ABORTED)

    def close(self) -> None:
        """Release everything; open transactions stay open for the coordinator."""
        with self._changed:
            if not self._closed:
                self._owner.release()
            self._closed = True
            ready = list(self._ready.values())
            self._ready.clear()
            self._changed.notify_all()
            for kept in ready:
                self._let_go(kept)
            for kept in (*self._open.values(), *self._held.values()):
                kept.over.set()  # its writer may never return, and must not block the thread

    def __len__(self) -> int:
        """Number of ids that this pool has used."""
        with self._changed:
            return len(self._slot_table)

    # --- below, the lock is held ------------------------------------------------------------

    def _start(self, *, at_least: int = 0) -> None:
        if self._closed:
            return
        for slot in self._slot_table.to_prepare(at_least=at_least):
            self._is_untold = False  # of an older task: report this try's error
            self._background(partial(self._make_ready, slot))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FencedError(
                "a newer attempt of this region runs in this process",
                {"region": self._region, "attempt_id": self.attempt_id},
                "End this task: a newer attempt has replaced it.",
            )

    def _is_open(self, lease: Lease) -> bool:
        """False: the pool has already given up this writer, and another may have the id by now."""
        kept = self._open.get(lease.slot)
        return kept is not None and kept.producer is lease.producer

    def _discard_old(self) -> None:
        for slot, ready in list(self._ready.items()):
            if self._is_old(ready):
                self._discard(slot, ready)

    def _is_old(self, ready: _Kept) -> bool:
        # A topic may have new partitions, and a load balancer may have dropped the connection.
        # Also, the job may be over while other jobs continue in this process.
        return ready.since_s < self._ages() - _MAX_IDLE_S

    def _discard(self, slot: int, ready: _Kept) -> None:
        with self._changed:
            if self._ready.get(slot) is not ready:
                return
            del self._ready[slot]
            self._slot_table.record(slot, SlotEvent.DISCARD)
            self._changed.notify_all()
            self._let_go(ready)

    def _let_go(self, kept: _Kept) -> None:
        kept.over.set()
        self._release_later(kept.producer)

    def _release_later(self, producer: TransactionalProducer) -> None:
        self._background(producer.release)

    def _too_late(self, timeout_s: float) -> NotReadyError:
        return NotReadyError(
            "no transactional producer became ready in time",
            {"region": self._region, "prefix": self._prefix, "timeout_s": timeout_s},
            "Check that the brokers run and are reachable from the executors.",
        )

    # --- below, it is not -------------------------------------------------------------------

    def _return(self, lease: Lease, event: SlotEvent) -> None:
        with self._changed:
            if not self._is_open(lease):
                return
            self._slot_table.record(lease.slot, event)
            kept = self._open.pop(lease.slot)
        self._let_go(kept)

    def _make_ready(self, slot: int) -> None:
        """Background thread: prepare, then keep alive until the writer releases it."""
        try:
            producer = self._prepare(self._id_of(slot))
        except LateRequestError as err:
            if not self._take_another(slot, err):
                self._not_ready(slot, err.reason, SlotEvent.UNANSWERED)
            return
        except StreamError as err:
            self._not_ready(slot, *_outcome(err))
            return
        except Exception as err:  # noqa: BLE001 - a task waits for it, and must be told
            # It may also have started after the request.
            self._not_ready(slot, _unexpected(err), SlotEvent.UNANSWERED)
            return
        ready = _Kept(producer, self._ages(), threading.Event())
        with self._changed:
            if self._closed:
                self._release_later(producer)
                return
            self._slot_table.record(slot, SlotEvent.PREPARED)
            self._late = 0
            self._is_untold = False
            self._ready[slot] = ready
            self._changed.notify_all()
        while self._keep_alive_s and not ready.over.wait(self._keep_alive_s):
            if not producer.keep_alive() or self._is_old(ready):
                self._discard(slot, ready)  # unless a writer has it

    def _take_another(self, slot: int, error: LateRequestError) -> bool:
        """No report to a waiting task: brokers answer, and a coordinator may move or a connection
        may break now and then. False: it happens too often for that."""
        with self._changed:
            self._late += 1
            if self._late > _MOST_LATE:
                return False
            log.info(
                "producer takes another transactional id: region=%s slot=%d error=%s",
                self._region,
                slot,
                error,
            )
            self._slot_table.record(slot, SlotEvent.UNANSWERED)
            self._start(at_least=1)
        return True

    def _not_ready(self, slot: int, error: StreamError, event: SlotEvent) -> None:
        log.info("producer not ready: region=%s slot=%d error=%s", self._region, slot, error)
        with self._changed:
            self._slot_table.record(slot, event)
            self._failures += 1
            self._failure, self._is_untold = error, True
            self._changed.notify_all()

    def _id_of(self, slot: int) -> str:
        return str(
            TransactionalId(
                prefix=self._prefix,
                job_uid=self._job_uid,
                region=self._region,
                attempt_id=self.attempt_id,
                owner=self._owner.name,
                slot=slot,
            )
        )


def _outcome(err: StreamError) -> tuple[StreamError, SlotEvent]:
    """The error for people, and whether the request may yet take effect."""
    if isinstance(err, UnansweredError):
        return err.reason, SlotEvent.UNANSWERED
    may_happen = isinstance(err, UnreachableError) and not isinstance(err, UnsentError)
    return err, SlotEvent.UNANSWERED if may_happen else SlotEvent.FAILED


def _unexpected(err: Exception) -> StreamError:
    error = DeliveryError(
        "a producer could not be created",
        {"cause": repr(err)},
        "Read the log of the executor, then start again from the last checkpoint.",
    )
    error.__cause__ = err
    return error


class ProducerPools:
    """All pools of a worker process, by prefix, job, sink and region."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[tuple[str, str, str, str], ProducerPool] = {}

    def enter(
        self, prefix: str, scope: TaskScope, make: Callable[[], ProducerPool]
    ) -> ProducerPool:
        """The pool for a task that starts. A new attempt closes the old pool.

        Raises:
            FencedError: this process has already seen a later attempt of the region.
        """
        key = (prefix, scope.job_uid, scope.operator_id, scope.batch.region)
        with self._lock:
            pool = self._pools.get(key)
            if pool is not None and pool.attempt_id > scope.batch.attempt_id:
                raise FencedError(
                    "a newer attempt of this region has run in this process",
                    {"region": scope.batch.region, "attempt_id": scope.batch.attempt_id},
                    "End this task: a newer attempt has replaced it.",
                )
            if pool is None or pool.attempt_id < scope.batch.attempt_id:
                if pool is not None:
                    pool.close()
                pool = self._pools[key] = make()
        pool.enter(scope)
        return pool

    def close(self) -> None:
        """Close every pool; the next task starts with new ids."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            pool.close()


_of_process = ProducerPools()
_inherited: list[ProducerPools] = []
_pid = os.getpid()


def process_pools() -> ProducerPools:
    """The pools of this process. A forked child owns no id and no thread of its parent. It keeps
    the inherited objects untouched, because even closing them would wait for those threads.
    """
    global _of_process, _pid
    if os.getpid() != _pid:
        _inherited.append(_of_process)
        _of_process = ProducerPools()
        _pid = os.getpid()
    return _of_process
