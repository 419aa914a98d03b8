"""Who reads what a job reports when it stops, and who gives commands beside it."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.transaction_requests import Wire
from sluice.connectors.kafka.tools.txn.job_transactions import SinkKey, SinkSettings
from sluice.connectors.kafka.tools.txn.txn_session import (
    Ended,
    TransactionSession,
    abort_transactions,
    commit_transactions,
    named_in,
    session_of,
)
from sluice.runtime.checkpoint.acceptance import accepted_as, in_effect
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    FencedError,
    RegionGivenUpError,
    RegionsSuspendedError,
    StorageError,
    StreamError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.ownership.lease import RENEWAL_INTERVAL_S
from tests.kit.files.fake_file_system import SimulatedCrashError
from tests.simulation.kafka import (
    CONNECTION,
    PREFIX,
    identities_of,
    identity_of,
    make_wire,
    open_lease_store,
)
from tests.simulation.rewriting import RewriteFailedError
from tests.simulation.stores import DiskStore

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

_SINK: SinkKey = ("sink", PREFIX)
_COMMAND_S = 0.5


class RegionBrokenError(Exception):
    """What would come again."""


class People:
    """They look when a job stops, and know the output. They may use ``sluice txn`` at any time.

    Attributes:
        words: what they have said of transactions.
        remedies: how often they had to go back further, to where no state is.
        done: transactions by the outcome of a command, and refusals by their error.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._session: TransactionSession | None = None
        self.words: Counter[AcceptedAs] = Counter()
        self.done: Counter[str] = Counter()
        self.remedies = 0

    # --- a job has stopped ------------------------------------------------------------------------

    @property
    def are_told_losses(self) -> bool:
        """Whether jobs may stop as often as they like, to report what they lost or do not know."""
        profile = self._world.profile
        return profile.lost_stops or profile.accepted or profile.forget > 0

    def hear(self, process: "Process") -> None:
        """Why a job stops. Nobody may stop for lost or unknown transactions where none is."""
        profile, error = self._world.profile, process.error
        tolerated: tuple[type[BaseException], ...] = (FencedError, StorageError, UnreachableError)
        if profile.suspend:  # the last one that is left ends the job, and so do suspended ones
            tolerated += (RegionGivenUpError, RegionsSuspendedError, RegionBrokenError)
        if profile.lost_stops:
            tolerated += (TransactionLostError,)
        if profile.broken_repairs:
            tolerated += (RewriteFailedError,)
        if profile.forget:
            tolerated += (TransactionUnknownError,)
        if process.wish is not None and isinstance(error, ConfigError | DamagedCheckpointError):
            self._world.wish = None  # it has been retired since, or lies after another restore
            tolerated += (ConfigError, DamagedCheckpointError)
        if profile.restore and profile.stateful and isinstance(error, DamagedCheckpointError):
            tolerated += (DamagedCheckpointError,)  # another start has rewound the logs meanwhile
            if process.is_newest():
                self.remedies += 1
                self._world.remedy = 0  # to a place that needs none
        is_loss = isinstance(error, TransactionLostError) and profile.accepted
        if is_loss or isinstance(error, TransactionUnknownError):
            assert error is not None
            self._accept(error)
        what = f"a coordinator stops by {type(error).__name__}: {error}"
        self._world.require(error is None or isinstance(error, tolerated), what)

    def _accept(self, error: BaseException) -> None:
        place = error.args[1]["checkpoint_id"]
        store = self._world.store_without_faults()
        record = store.read(place)
        if record is None or store.is_committed(place):
            return  # others have settled it since
        standing = store.effective_committables(record)
        works = in_effect(store.unsettled(place), standing)
        if not works:
            return  # another run has written it again since
        if isinstance(error, TransactionUnknownError):
            self._require_unknown(standing)
        entries = {digest_of(entry): entry for entry in standing}
        words = [accepted_as(work, self._word_for(entries, work)) for work in works]
        said = [word for word in words if word is not None]
        lost = {word.digest for word in said if word.accepted_as is AcceptedAs.LOST}
        try:
            store.accept(place, said)
        except ConfigError as err:
            self._world.note(f"nothing is accepted: {err.args[0]}")
            return
        self.words.update(word.accepted_as for word in said)
        self._world.note(f"a person accepts the loss of slot {place}: {len(said)}")
        self._world.watch.accepts(place, standing, [work for work in works if work.digest in lost])

    def _require_unknown(self, standing: tuple[StateEntry, ...]) -> None:
        is_one = any(map(self._world.watch.is_forgotten, identities_of(standing)))
        self._world.require(is_one, "a job stops for what its brokers know")

    def _word_for(self, entries: dict[str, StateEntry], work: UnsettledWork) -> AcceptedAs | None:
        """They have looked for the records in the output."""
        if work.outcome is not CommitOutcome.UNKNOWN:
            return None
        identity = identity_of(entries[work.digest])
        if not self._world.watch.is_committed(identity):
            return AcceptedAs.LOST
        self._world.watch.tells_committed(identity)
        return AcceptedAs.COMMITTED

    # --- `sluice txn` -----------------------------------------------------------------------------

    def move_command(self, number: int) -> None:
        """A command looks at directory and brokers; with the next move it continues."""
        try:
            if self._session is None:
                self._session = self._look()
            else:
                session, self._session = self._session, None
                self._end(session, number)
        except SimulatedCrashError:
            self._world.note("the command is interrupted")
        except StreamError as err:
            self.done[type(err).__name__] += 1
            self._world.note(f"the command is refused: {err.args[0]}")

    def _look(self) -> TransactionSession | None:
        store = DiskStore(self._world)
        records, named = named_in(store)
        if not records:
            return None
        sinks = {_SINK: SinkSettings(name=_SINK[0], prefix=PREFIX, options={})}
        wires: dict[SinkKey, Wire] = {_SINK: make_wire(self._world)}
        connections: dict[SinkKey, KafkaConnection] = {_SINK: CONNECTION}
        session = session_of(
            named,
            checkpoint_uri=store.uri,
            last=records[-1],
            sinks=sinks,
            connections=connections,
            wires=wires,
            refresh_named=lambda: named_in(store)[1],
            timeout_s=_COMMAND_S,
        )
        return replace(
            session,
            open_lease_store=lambda *_, **__: open_lease_store(self._world),
            clock=self._world.clock,
            sleep=self._wait,
        )

    def _end(self, session: TransactionSession, number: int) -> None:
        dice = self._world.random
        ids = [line.transactional_id for line in session.lines]
        chosen = dice.sample(ids, min(len(ids), 2)) if number % 3 == 0 else []
        if number % 2:
            self._note(commit_transactions(session, chosen, force=False, timeout_s=_COMMAND_S))
            return
        for process in self._world.processes:
            if process.paused and not process.dead:
                self._world.kill(process)  # a job that is suspended is ended first
        self._note(abort_transactions(session, chosen, force=False, timeout_s=_COMMAND_S))

    def _note(self, ended: Ended) -> None:
        self.done.update(report.outcome.value for _, report in ended)

    def _wait(self, seconds: float) -> None:
        self._world.nap(seconds)
        if seconds < RENEWAL_INTERVAL_S / 100:
            return  # between two requests
        self._world.disk.land_late_steps()
        for process in self._world.processes:
            if not (process.paused or process.is_stuck()):
                self._world.quietly(process.renew)
