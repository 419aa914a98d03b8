"""Writes the page on checkpoints and regions from their tables: ``python -m`` this module."""

import enum
import sys
from collections.abc import Mapping
from typing import Any

from sluice.runtime.coordinator.policy import state_tables
from sluice.runtime.coordinator.policy.state_tables import RegionPhase, State

__all__ = ["page"]

_CHECKPOINT = {
    State.ARMED: "due, but no region has records to read yet; nothing is published meanwhile",
    State.ALIGNING: "barriers are out; the coordinator waits for acknowledgements or the timeout",
    State.PRE_COMMITTED: "every region acknowledged or is skipped; waits for the slot before it",
    State.DECIDING: "the record may be durable or not: neither abort nor commit",
    State.DECIDED: "the record is durable: the coordinator commits everything in it",
    State.REPAIRING: "a broker aborted a decided transaction; its records are written again",
    State.COMMITTED: "every committable is committed; the completion marker is not durable yet",
    State.MARKED: "committed on record: callbacks return, transactional ids may be used again",
    State.WITHDRAWING: "too old while deciding, and its record may be durable: the coordinator "
    "tries an ABORTED record in the same slot, and the first record that lands stands",
    State.ABORTING: "given up; the ABORTED record is not durable yet, so nothing is aborted yet",
    State.ABORTED: "the ABORTED record holds the slot; the transactions may be aborted",
    State.FENCED: "another coordinator holds the slot: this one changes nothing more",
}

_REGION = {
    RegionPhase.RUNNING: "its attempt polls for barriers and writes batches",
    RegionPhase.TIMED_OUT: "a checkpoint was decided without its batch, which is still under way; "
    "the batch joins a later checkpoint",
    RegionPhase.STARTING: "its next attempt may begin and has not polled for a barrier yet",
    RegionPhase.FAILED: "its attempt has ended; the next one waits until the fencing record is "
    "durable, the old work is settled, and the restart delay is over",
    RegionPhase.SUSPENDED: "failed for good, and the job continues without it; its old work is "
    "not settled yet",
    RegionPhase.FENCED: "failed for good, and its old work is settled: it waits for an operator",
}


def page() -> str:
    """The whole page; a test compares it with the file."""
    return f"""# States of a checkpoint and of a region

Generated from the tables in `sluice/runtime/coordinator/policy/state_tables.py`; do not edit. Run
`python -m tools.state_diagram > docs/internals/checkpoint-states.md`.
[Life of a checkpoint](life-of-a-checkpoint.md) shows the steps that lead through these states.

## Checkpoint

The table is `TRANSITIONS`.

{_diagram(state_tables.TRANSITIONS, State.ARMED)}

{_table("state", _CHECKPOINT)}

{len(state_tables.TRANSITIONS)} transitions are legal. The core refuses every other event and changes nothing.

## Region

The table is `REGION_TRANSITIONS`. A region starts as *running*, since the
first attempt of a run has no old work to settle.

{_diagram(state_tables.REGION_TRANSITIONS, RegionPhase.RUNNING)}

{_table("phase", _REGION)}

{len(state_tables.REGION_TRANSITIONS)} transitions are legal.

## Region and checkpoint together

An event of a region means for a checkpoint:

| event of a region | state of the checkpoint | event of the checkpoint |
|---|---|---|
{_rows(state_tables.FOR_CHECKPOINT)}

An event of a checkpoint means for each region that has a barrier or a batch in it:

| event of the checkpoint | phase of the region | event of the region |
|---|---|---|
{_rows(state_tables.FOR_REGION)}

A region that has not acknowledged a checkpoint is, for the checkpoint handler:

| phase of the region | the checkpoint |
|---|---|
{_parts()}
"""  # noqa: E501 - one paragraph of the page


def _diagram(transitions: Mapping[tuple[Any, Any], Any], first: enum.Enum) -> str:
    def name(state: enum.Enum) -> str:
        return str(state.value).replace("-", "_").replace(" ", "_")

    sources = {source for source, _ in transitions}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {name(first)}"]
    lines += [
        f"    {name(source)} --> {name(target)}: {event.value}"
        for (source, event), target in transitions.items()
    ]
    lines += [f"    {name(state)} --> [*]" for state in type(first) if state not in sources]
    return "\n".join([*lines, "```"])


def _table(head: str, meanings: Mapping[Any, str]) -> str:
    rows = "\n".join(f"| {state.value} | {text} |" for state, text in meanings.items())
    return f"| {head} | meaning |\n|---|---|\n{rows}"


def _rows(table: Mapping[tuple[Any, Any], Any]) -> str:
    return "\n".join(f"| {a.value} | {b.value} | {c.value} |" for (a, b), c in table.items())


def _parts() -> str:
    return "\n".join(
        f"| {phase.value} | {part.value} |" for phase, part in state_tables.PARTS.items()
    )


if __name__ == "__main__":
    sys.stdout.write(page())
