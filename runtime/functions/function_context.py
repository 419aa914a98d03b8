"""The context of a function of ``map_batches``: counters of the user, and its state.

An increment is part of the call's output. It counts once, when the checkpoint with that output is
committed. It does not count if the output is left out: that of a retried task, of an epoch that is
read again, or of a batch that is halved.
"""

import inspect
import operator
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa

from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.broadcasts import Tables
from sluice.runtime.functions.operator_state import StateList

__all__ = ["FunctionContext", "FunctionCounter", "require_few", "takes_context"]

_MOST_COUNTERS = 100
_LONGEST_NAME = 100


class FunctionContext:
    """One call of a function of ``map_batches`` that has a second parameter. Any thread of the
    call.

    Args:
        operator_name: of the function.
        state: its operator state; None: it has declared none.
        tables: of the broadcast streams that it reads; None: it reads none.
    """

    def __init__(
        self, operator_name: str, state: StateList | None = None, tables: Tables | None = None
    ) -> None:
        self._operator_name = operator_name
        self._state = state
        self._tables = tables
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._is_over = False

    @property
    def state(self) -> StateList:
        """The function's operator state, as of this call.

        Raises:
            ConfigError: the function has declared none.
        """
        if self._state is None:
            raise ConfigError(
                "a function without operator state uses ctx.state",
                {"function": self._operator_name},
                "Declare it: map_batches(function, state=OperatorState(schema)).",
            )
        return self._state

    @property
    def broadcast(self) -> pa.Table | Mapping[str, pa.Table]:
        """The table of the function's broadcast stream: the latest row of each key. It is the same
        in all tasks for a whole epoch. Of several streams: their tables by name.

        Raises:
            ConfigError: the function reads none.
        """
        if self._tables is None:
            raise ConfigError(
                "a function without a broadcast stream uses ctx.broadcast",
                {"function": self._operator_name},
                "Declare it: map_batches(function, broadcast=rules), after "
                "rules = job.source(…).broadcast(key=…).",
            )
        return self._tables.current

    def counter(self, name: str) -> "FunctionCounter":
        """The counter of this name. It is reported from now on, also with 0.

        Args:
            name: 1 to 100 printable characters. A function has at most 100 counters.
        Raises:
            ConfigError: the name is not allowed, the function has too many counters, or this call
                has returned.
        """
        is_text = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
        if not is_text:
            raise ConfigError(
                "a counter has a name that is not allowed",
                {"function": self._operator_name, "counter": repr(name)[: 2 * _LONGEST_NAME]},
                f"Use 1 to {_LONGEST_NAME} printable characters.",
            )
        self._add(name, 0)
        return FunctionCounter(name, self._add)

    def _add(self, name: str, n: int) -> None:
        with self._lock:
            if self._is_over:
                raise ConfigError(
                    "a counter was used after its function had returned",
                    {"function": self._operator_name, "counter": name},
                    "Call ctx.counter(name) in each call of the function, and keep no counter.",
                )
            if name not in self._counts:
                require_few({*self._counts, name}, function=self._operator_name)
            self._counts[name] = self._counts.get(name, 0) + n

    def close(self) -> Mapping[str, int]:
        """The call has returned: its increments, by name."""
        with self._lock:
            self._is_over = True
            return self._counts


class FunctionCounter:
    """A number that only grows; see `FunctionContext.counter`."""

    def __init__(self, name: str, add: Callable[[str, int], None]) -> None:
        self._name = name
        self._add = add

    def inc(self, n: int = 1) -> None:
        """Add ``n``, an integer >= 0 of Python, NumPy or Arrow.

        Raises:
            ConfigError: it is another value, or the function's call has returned.
        """
        try:
            number = operator.index(n.as_py() if hasattr(n, "as_py") else n)
        except TypeError:
            number = -1
        if number < 0:
            raise ConfigError(
                "a counter was increased by something else than a number",
                {"counter": self._name, "given": repr(n)[:100]},
                "Pass an integer of 0 or more.",
            )
        self._add(self._name, number)


def require_few(names: Collection[str], *, function: str) -> None:
    """Raise ConfigError if a function has more counters than its totals may hold."""
    if len(names) > _MOST_COUNTERS:
        raise ConfigError(
            "a function has too many counters",
            {"function": function, "most": _MOST_COUNTERS, "some": ",".join(sorted(names)[:3])},
            "Use a fixed set of names, not values of records. Totals keep the names of earlier "
            "versions, until the function gets another uid.",
        )


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the function requires a second argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of C may have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(required) == 2
