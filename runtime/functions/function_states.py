"""What the functions of one task have beside their rows: operator states, which are saved at a
barrier, and the tables of broadcast streams."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.broadcasts import LoadTable, Tables, TaskBroadcasts, no_table
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.operator_state import (
    MOST_BYTES,
    OPERATOR_LIST_KIND,
    OperatorState,
    StateList,
    decoded,
    state_entry,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.state.broadcast_version import BroadcastVersion

__all__ = ["FunctionStates", "states_after"]


class FunctionStates:
    """Executor, the task's thread; one for each attempt of a continuous task or of a batch's task.

    Args:
        functions: of the region.
        entries: operator states of the region's record, of any kind.
        load: reads the table of a broadcast stream.

    Attributes:
        functions: the same, each with its list of rows and its tables.
        broadcasts: that they read.
    """

    def __init__(
        self,
        functions: Sequence[ChainedFunction],
        entries: Iterable[StateEntry] = (),
        load: LoadTable = no_table,
    ) -> None:
        self.broadcasts = TaskBroadcasts([b for f in functions for b in f.broadcasts], load)
        saved = {e.operator_id: e for e in entries if e.kind == OPERATOR_LIST_KIND}
        self._sizes = {i: len(entry.payload) for i, entry in saved.items()}
        self.functions = tuple(
            replace(
                function,
                list=None if function.state is None else _loaded(function, function.state, saved),
                tables=Tables(function.broadcasts) if function.broadcasts else None,
            )
            for function in functions
        )

    def adopt(self, versions: Iterable[BroadcastVersion]) -> None:
        """Let the functions read these versions of broadcast streams.

        Raises:
            StreamError: a table cannot be read.
        """
        if self.broadcasts.adopt(versions):
            for function in self.functions:
                if function.tables is not None:
                    function.tables.update(self.broadcasts.tables)

    def rollback(self) -> None:
        """Take back the changes of the epoch under way."""
        for function in self.functions:
            if function.list is not None:
                function.list.rollback()

    def end_epoch(self) -> tuple[StateEntry, ...]:
        """The states that the epoch has changed.

        Raises:
            ConfigError: rows do not match their schema, or the states are too large.
        """
        changed = []
        for function in self.functions:
            payload = None if function.list is None else function.list.end_epoch()
            if function.state is not None and payload is not None:
                self._sizes[function.operator_id] = len(payload)
                changed.append(
                    state_entry(
                        payload,
                        operator_id=function.operator_id,
                        redistribution=function.state.mode,
                    )
                )
        if changed and sum(self._sizes.values()) > MOST_BYTES:
            names = {f.operator_id: f.name for f in self.functions}
            raise ConfigError(
                "the operator state of a region is too large",
                {
                    "bytes": sum(self._sizes.values()),
                    "most_bytes": MOST_BYTES,
                    "functions": ",".join(names[entry.operator_id] for entry in changed),
                },
                "Keep fewer rows, or use state by key: stream.key_by(…).process(…). Each "
                "checkpoint writes operator state whole.",
            )
        return tuple(changed)


def states_after(
    before: Iterable[StateEntry],
    changed: Sequence[StateEntry],
    functions: Sequence[ChainedFunction],
) -> tuple[StateEntry, ...]:
    """The lists in a region's record after an epoch; of functions that declare a state."""
    kept: Mapping[str, StateEntry] = {
        entry.operator_id: entry
        for entry in (*before, *changed)
        if entry.kind == OPERATOR_LIST_KIND
    }
    return tuple(kept[f.operator_id] for f in functions if f.state and f.operator_id in kept)


def _loaded(
    function: ChainedFunction, state: OperatorState, saved: Mapping[str, StateEntry]
) -> StateList:
    entry = saved.get(function.operator_id)
    if entry is None:
        return StateList(state.schema)
    known = decoded(entry).schema
    changed = [
        f"{field.name}: {field.type}"
        for field in known
        if field.name not in state.schema.names or state.schema.field(field.name).type != field.type
    ]
    if changed:
        raise ConfigError(
            "an operator state has another schema in the checkpoint",
            {"function": function.name, "checkpoint_has": ", ".join(changed)},
            "Keep these columns with their types; new ones are null. Or give the function another "
            "uid, and begin with an empty list.",
        )
    return StateList(state.schema, entry.payload)
