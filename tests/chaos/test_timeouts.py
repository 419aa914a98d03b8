"""A job that is away longer than its transactions live, at each place where it may be stopped.

The brokers have aborted then what was open. The next start writes again what was decided and lost,
or stops and names it; what was not decided it reads again. A run that ends well, and whose output
is not exact, fails here. Proves rules `outcome-from-broker`, `two-phase-repair` and
`transaction-timeout`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.regions.mortal_sink import PRE_COMMITTED, Doom
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import COMMITTABLE_KIND, TransactionHandle, decode_handle
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.model.checkpoint_record import Verdict
from tests.chaos import beds
from tests.chaos.programs import MORTAL_COPY, RESTLESS_REGIONS, Subject
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.kafka.kafka_records import await_stable, read
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_TIMEOUT_S = 16  # the shortest that a start accepts is 15
_HIT = {"micro-batch": 2, "continuous": 3}
_CELLS = (
    *(("micro-batch", MORTAL_COPY, name) for name in beds.IN_BATCHES),
    *(("continuous", MORTAL_COPY, name) for name in beds.CONTINUOUSLY),
    *(("micro-batch", subject, name) for subject, name in beds.OF_FILES),
)
_DAILY_PAUSED = {("micro-batch", "after-decision")}  # there is something to lose


class _Absence(Scenario):
    """A scenario whose broker ends what the program left open."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        directory: Path,
        *,
        subject: Subject = MORTAL_COPY,
        setting: Setting | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = {"TRANSACTION_TIMEOUT_S": str(_TIMEOUT_S), **(environment or {})}
        super().__init__(
            subject,
            kafka.bootstrap,
            directory,
            replace(setting or Setting(preload=1_000), environment=variables),
        )
        self._kafka = kafka
        self._wire = TransactionWire(self.topics.connection)

    def close_wire(self) -> None:
        self._wire.close()

    def on_lost(self, what: str) -> None:
        variables = {**self.setting.environment, "ON_LOST": what}
        self.setting = replace(self.setting, environment=variables)

    def await_timeouts(self) -> set[str]:
        """Stay away until no transaction of the program is open.

        Returns the ids of those that a decision names and that the broker has aborted, by what the
        records on disk and the broker say; the program is not asked.
        """
        prefix = f"{self.subject.name}-{self.topics.output}"

        def none_open() -> bool:
            found = self._wire.list_transactions(
                prefix, timeout_s=PATIENCE_S, states=(TransactionState.ONGOING,)
            )
            return not (found.transactions or found.missing)

        wait_for(none_open, what="the end of every transaction")
        await_stable(self._kafka.bootstrap, self.topics.output)
        decided = {handle.transactional_id: handle.identity for handle in self._decided()}
        described = self._wire.describe(list(decided), timeout_s=PATIENCE_S) if decided else {}
        return {
            name
            for name, identity in decided.items()
            if (one := described[name]) is not None
            and one.state is TransactionState.COMPLETE_ABORT
            and one.producer_id == identity.producer_id
        }

    def _decided(self) -> Iterator[TransactionHandle]:
        store = open_store(str(self.checkpoint))
        for place in store.slots():
            record = store.read(place)
            if record is None or record.verdict is not Verdict.DECIDED:
                continue
            if not (store.is_committed(place) or store.is_superseded(place)):
                named = store.effective_committables(record)
                yield from (decode_handle(e) for e in named if e.kind == COMMITTABLE_KIND)

    def visible(self) -> int:
        """Records in the output that a read_committed reader finds."""
        return len(read(self._kafka.bootstrap, self.topics.output))

    def return_home(self, lost: set[str]) -> None:
        """Start it, reported to stop when something is lost: it does exactly then, and changes nothing;
        reported to repair, it ends with an exact output."""
        seen = self.visible()
        self.on_lost("fail")
        self.feeder.close()
        program = self.start(until_end=True)
        exit_code = program.await_exit(timeout_s=START_S)
        assert program.await_end(timeout_s=PATIENCE_S)
        if not lost:
            assert exit_code == 0, program.log_tail()
            self.judge()
            return
        assert exit_code not in (0, None), f"silent, with {lost} lost:\n{program.log_tail()}"
        assert "TransactionLostError" in program.log(), program.log_tail()
        assert f"{self.topics.source}-" in program.log(), "the ranges are named"
        assert self.visible() == seen
        self.on_lost("repair")
        self.finish()


@pytest.fixture
def opened() -> Iterator[list[_Absence]]:
    """Scenarios whose connection is closed after the test."""
    made: list[_Absence] = []
    yield made
    for scenario in made:
        scenario.close_wire()


def _cells(daily: Collection[tuple[str, str]] = ()) -> list:
    return [
        pytest.param(
            engine,
            subject,
            failpoint,
            id=f"{engine}-{failpoint}",
            marks=() if (engine, failpoint) in daily else pytest.mark.long,
        )
        for engine, subject, failpoint in _CELLS
    ]


@pytest.mark.parametrize(("engine", "subject", "failpoint"), _cells())
def test_two_phase_repair_killed_and_away_beyond_the_transaction_timeout(
    kafka: EmbeddedKafka,
    tmp_path: Path,
    opened: list[_Absence],
    engine: str,
    subject: Subject,
    failpoint: str,
) -> None:
    """Between the decision and its mark there is something to lose, elsewhere there is not; of
    files beside the topic never."""
    opened.append(_Absence(kafka, tmp_path, subject=subject, environment={"ENGINE": engine}))
    with opened[-1] as scenario:
        for kill in beds.kills((failpoint,), hit=_HIT[engine]):
            scenario.kill_at(kill)
        scenario.return_home(scenario.await_timeouts())


@pytest.mark.parametrize(("engine", "subject", "failpoint"), _cells(_DAILY_PAUSED))
def test_two_phase_repair_paused_beyond_the_transaction_timeout(
    kafka: EmbeddedKafka,
    tmp_path: Path,
    opened: list[_Absence],
    engine: str,
    subject: Subject,
    failpoint: str,
) -> None:
    """All its processes hang, from the step of one of them on, and continue: it stops by itself
    if something was lost, and continues with an exact output, or stops too, if nothing was."""
    *before, last = beds.kills((failpoint,), hit=_HIT[engine])
    variables = {"ENGINE": engine, "ON_LOST": "fail"}
    opened.append(_Absence(kafka, tmp_path, subject=subject, environment=variables))
    with opened[-1] as scenario:
        for kill in before:
            scenario.kill_at(kill)
        program = scenario.start(failpoints=str(replace(last, action="pause")))
        wait_for(program.is_any_paused, what=f"a pause at {failpoint}")
        program.pause()
        lost = scenario.await_timeouts()
        seen = scenario.observer.catch_up(timeout_s=PATIENCE_S)

        def goes_on() -> bool:
            program.resume()  # each look: another task may come to the point only now
            has_progress = not lost and scenario.observer.total > seen + 200
            return has_progress or program.exit_code is not None

        wait_for(goes_on, what="progress, or an end")
        if program.exit_code is None:
            scenario.finish_running(program)
            return
        assert program.exit_code != 0, program.log_tail()
        assert program.await_end(timeout_s=PATIENCE_S)
        if lost:
            assert "TransactionLostError" in program.log(), program.log_tail()
        scenario.return_home(scenario.await_timeouts())


@pytest.mark.long
@pytest.mark.parametrize("failpoint", beds.REPAIR)
def test_two_phase_repair_what_was_written_again_is_lost_again(
    kafka: EmbeddedKafka, tmp_path: Path, opened: list[_Absence], failpoint: str
) -> None:
    """Killed in the repair, and away beyond the timeout of the repair's own transactions."""
    opened.append(_Absence(kafka, tmp_path))
    with opened[-1] as scenario:
        scenario.kill_at(Kill(failpoint="after-decision", hit=2))
        scenario.feeder.close()
        assert scenario.await_timeouts()
        scenario.on_lost("repair")
        scenario.kill_at(Kill(failpoint=failpoint))
        lost = scenario.await_timeouts()
        assert lost
        scenario.return_home(lost)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", beds.REGIONAL)
def test_two_phase_repair_away_beyond_the_timeout_at_every_regional_step(
    kafka: EmbeddedKafka, tmp_path: Path, opened: list[_Absence], failpoint: str
) -> None:
    """While a region fails, one is late, and splits move.

    In micro-batches: a continuous task as slow as the late one cannot write a longer backlog
    within so short a timeout, and is begun again for ever.
    """
    doom = Doom(tmp_path / "doom")
    setting = beds.restless(doom, engine="micro-batch")
    opened.append(
        _Absence(
            kafka,
            tmp_path,
            subject=RESTLESS_REGIONS,
            setting=setting,
            environment=setting.environment,
        )
    )
    with opened[-1] as scenario:
        for kill in beds.kills((failpoint,), hit=1):
            scenario.kill_at(kill, on_progress=lambda: doom.request("in-2", PRE_COMMITTED))
        doom.take("in-2")  # else a repair takes it, which writes in the driver
        scenario.return_home(scenario.await_timeouts())
