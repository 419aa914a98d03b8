"""Lost transactions of a decision, repaired or accepted in a wrong way; see
`tests.simulation.mutations`."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import CommitOutcome, UnsettledWork
from sluice.runtime.coordinator.committing.commit_steps import DecidedWork, SharedCommitters
from sluice.runtime.coordinator.committing.repairs import Repairs
from sluice.runtime.coordinator.start import settlement
from sluice.runtime.coordinator.start.settlement import Answers, Settlement
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry
from tests.simulation.kafka import identity_of
from tests.simulation.profiles import PROFILES
from tests.simulation.rewriting import Rewriter


def commit_repairs_unrecorded(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: the coordinator commits a repair only after it has recorded the
    replaced transactions."""
    repair = Rewriter.repair

    def broken(self: Any, *args: Any, **kwargs: Any) -> dict[bytes, StateEntry]:
        replaced = repair(self, *args, **kwargs)
        for entry in replaced.values():
            self._world.broker.end(identity_of(entry), commit=True, version=4)
        return replaced

    patch.setattr(Rewriter, "repair", broken)


def accept_every_loss(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: an operator accepts the losses that an error has named. Any other
    loss stops the next start."""
    lose = Settlement._lose  # noqa: SLF001 - broken on purpose

    def broken(
        self: Settlement, record: CheckpointRecord, decided: DecidedWork, answers: Answers
    ) -> Generator[str, None, bool]:
        if not self.store.accepted(record.checkpoint_id):
            return (yield from lose(self, record, decided, answers))
        lost = [e for e, report in answers if report.outcome is CommitOutcome.ABORTED]
        self._left_out |= set(map(digest_of, lost))
        self._committers = SharedCommitters(self.sinks, self.plan)
        return True

    patch.setattr(Settlement, "_lose", broken)


def write_accepted_losses_again(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: no run writes a loss again that an operator has accepted, not even a
    run that slept meanwhile."""
    begin = Repairs.__init__

    def broken(self: Repairs, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **{**kwargs, "is_taken_over": lambda: False})

    patch.setattr(Repairs, "__init__", broken)
    for module in (
        "sluice.runtime.checkpoint.checkpoint_store",
        "tests.kit.coordinator.fake_store",
    ):
        patch.setattr(f"{module}.claim_of", lambda *_, **__: {})


def _tell(
    patch: pytest.MonkeyPatch, told: Callable[[Answers], Answers], named: Callable[[Any], Any]
) -> None:
    """Reports the lost transactions of a decision in a wrong way."""
    works_of = settlement.unsettled_works

    def broken(regions: Any, answers: Answers) -> tuple[UnsettledWork, ...]:
        return tuple(map(named, works_of(regions, told(answers))))

    patch.setattr(settlement, "unsettled_works", broken)


def report_some_lost_ranges_only(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: an error names every range that is lost."""
    _tell(patch, lambda answers: answers, lambda work: replace(work, ranges=work.ranges[:1]))


def report_open_transactions_as_lost(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: an unanswered transaction may be committed. No error asks an
    operator to give it up."""

    def told(answers: Answers) -> Answers:
        lost = CommitOutcome.ABORTED
        return [
            (entry, replace(r, outcome=lost) if r.outcome is CommitOutcome.PENDING else r)
            for entry, r in answers
        ]

    _tell(patch, told, lambda work: work)


_ACCEPTED = asdict(PROFILES["one region's loss is reported and accepted before another's is known"])

LOSS_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "commit repairs unrecorded": (
        commit_repairs_unrecorded,
        {"expire": 0.1, "kill": 0.03, "refused": 0.2},
        "visible before its decision",
    ),
    "accept every loss": (accept_every_loss, _ACCEPTED, "marked before it is committed"),
    "report some lost ranges only": (
        report_some_lost_ranges_only,
        _ACCEPTED,
        "other ranges are reported",
    ),
    "report open transactions as lost": (
        report_open_transactions_as_lost,
        _ACCEPTED,
        "what is accepted as lost is not lost",
    ),
    "write accepted losses again": (
        write_accepted_losses_again,
        {
            "expire": 0.1,
            "lost_stops": True,
            "accepted": True,
            "some_repair": True,
            "kill": 0.02,
            "pause": 0.05,
            "start": 0.1,
            "processes": 16,
            "steps": 200,
        },
        "doubled",
    ),
}
