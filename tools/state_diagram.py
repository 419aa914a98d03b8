"""Writes the page on the states of a checkpoint from their table: ``python -m`` this module."""

import sys

from sluice.runtime.coordinator.core.checkpoint_states import TRANSITIONS, State, mermaid

__all__ = ["page"]

_MEANING = {
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


def page() -> str:
    """The whole page; a test compares it with the file."""
    rows = "\n".join(f"| {state.value} | {_MEANING[state]} |" for state in State)
    return f"""# States of a checkpoint

Generated from the table in `sluice/runtime/coordinator/core/checkpoint_states.py`; do not edit. Run
`python -m tools.state_diagram > docs/internals/checkpoint-states.md`.
[Life of a checkpoint](life-of-a-checkpoint.md) shows the steps that lead through these states.

```mermaid
{mermaid()}
```

| state | meaning |
|---|---|
{rows}

{len(TRANSITIONS)} transitions are legal. The core refuses every other event and changes nothing.
"""


if __name__ == "__main__":
    sys.stdout.write(page())
