"""``sluice txn`` without one of its rules; see `tests.simulation.mutations`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from sluice.connectors.kafka.tools.txn import txn_session
from tests.simulation.profiles import PROFILES


def _without(patch: pytest.MonkeyPatch, name: str) -> None:
    patch.setattr(txn_session, name, lambda *_, **__: None)


def abort_by_command_while_the_job_runs(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: as long as the job runs, it may decide an open transaction."""
    _without(patch, "_refuse_while_alive")


def abort_by_command_after_a_late_decision(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: the job may decide and end after the command has listed the
    transactions."""
    _without(patch, "_refuse_decided_since")


def abort_decided_work_by_command(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: no command aborts a transaction that a decision names."""
    _without(patch, "_refuse_decided_abort")


def commit_undecided_work_by_command(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-by-endtxn`: no command commits an undecided transaction, because the job writes
    its records again."""
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
_FEW_STARTS = {
    "disk": True,
    "txn": 0.4,
    "refused": 0.0,
    "unreached": 0.0,
    "partitions": 6,
    "max_concurrent": 3,
    "steps": 200,
}

PEOPLE_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "abort by command while the job runs": (
        abort_by_command_while_the_job_runs,
        _PEOPLE,
        "a decision names an aborted one",
    ),
    "abort by command after a late decision": (
        abort_by_command_after_a_late_decision,
        _FEW_STARTS,
        "a decided transaction is aborted",
    ),
    "abort decided work by command": (
        abort_decided_work_by_command,
        _PEOPLE,
        "a decided transaction is aborted",
    ),
    "commit undecided work by command": (
        commit_undecided_work_by_command,
        _PEOPLE,
        "visible before its decision",
    ),
}
