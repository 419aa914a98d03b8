"""Writes ``docs/checkpoint-states.md`` from the table of states: ``python -m`` this module."""

import sys

from sluice.runtime.coordinator.core.checkpoint_states import TRANSITIONS, State, mermaid

__all__ = ["page"]

_MEANING = {
    State.ARMED: "due, but no region has had anything to cut; nothing is published while it idles",
    State.ALIGNING: "barriers are out, acknowledgements are awaited until the timeout",
    State.PRE_COMMITTED: "all regions acknowledged or are carried; waits for the place before it",
    State.DECIDING: "the record may be durable or not: neither abort nor commit",
    State.DECIDED: "the record is durable: everything in it is committed, however often it takes",
    State.REPAIRING: "a decided transaction was aborted by the broker and is written again",
    State.COMMITTED: "every committable is committed; the mark is not durable yet",
    State.MARKED: "committed on record: callbacks return, transactional ids may be used again",
    State.WITHDRAWING: "grew old while deciding, and the record may be durable all the same: an "
    "ABORTED record is tried in its place, and whichever lands first stands",
    State.ABORTING: "given up; the ABORTED record is not durable yet, so nothing is aborted yet",
    State.ABORTED: "the ABORTED record holds its place; its transactions may be aborted",
    State.FENCED: "another coordinator holds its place: this one changes nothing more",
}


def page() -> str:
    """The whole page; a test compares it with the file."""
    rows = "\n".join(f"| {state.value} | {_MEANING[state]} |" for state in State)
    return f"""# States of a checkpoint

Made from the table in `runtime/coordinator/core/checkpoint_states.py` by
`python -m tools.state_diagram > docs/checkpoint-states.md`; do not edit.

```mermaid
{mermaid()}
```

| state | meaning |
|---|---|
{rows}

{len(TRANSITIONS)} transitions are legal; every other event is refused and changes nothing.
"""


if __name__ == "__main__":
    sys.stdout.write(page())
