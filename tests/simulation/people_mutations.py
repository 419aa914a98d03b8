"""``sluice txn`` without one of its rules: see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from sluice.connectors.kafka.tools.txn import txn_session
from tests.simulation.profiles import PROFILES

__all__ = ["PEOPLE_MUTATIONS"]


def _without(patch: pytest.MonkeyPatch, name: str) -> None:
    patch.setattr(txn_session, name, lambda *_, **__: None)


def abort_by_hand_beside_a_living_job(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: what is open may be decided as long as the job lives."""
    _without(patch, "_refuse_while_alive")


def abort_by_hand_what_was_decided_since(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: the job may have died between its decision and its commits
    meanwhile."""
    _without(patch, "_refuse_decided_since")


def abort_by_hand_what_is_decided(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: what a decision names is not aborted, whoever asks for it."""
    _without(patch, "_refuse_decided_abort")


def commit_by_hand_what_no_decision_names(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: the job writes it again."""
    _without(patch, "_refuse_undecided_commit")


_PEOPLE = asdict(PROFILES["people end transactions of several tasks"])
_OFTEN = {
    "disk": True,
    "txn": 0.4,
    "kill": 0.05,
    "pause": 0.1,
    "start": 0.1,
    "processes": 30,
    "steps": 300,
}

PEOPLE_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "abort by hand beside a living job": (
        abort_by_hand_beside_a_living_job,
        _PEOPLE,
        "a decision names an aborted one",
    ),
    "abort by hand what was decided since": (
        abort_by_hand_what_was_decided_since,
        _OFTEN,
        "a decided transaction is aborted",
    ),
    "abort by hand what is decided": (
        abort_by_hand_what_is_decided,
        _PEOPLE,
        "a decided transaction is aborted",
    ),
    "commit by hand what no decision names": (
        commit_by_hand_what_no_decision_names,
        _PEOPLE,
        "visible before its decision",
    ),
}
