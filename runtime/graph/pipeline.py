"""The parts of a described job: sources, functions and sinks, its engine and its recovery."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from sluice.runtime.contracts import Sink, Source, TimedSource
from sluice.runtime.contracts.keyed import KeyBy, KeyedFunction
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.broadcasts import Broadcast
from sluice.runtime.functions.function_context import takes_context
from sluice.runtime.functions.function_run import ArrowFunction, ChainedFunction
from sluice.runtime.functions.operator_state import OperatorState
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.on_error import Policy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "KEYED_KINDS",
    "BatchFunction",
    "Engine",
    "FrameFunction",
    "Pipeline",
    "Recovery",
    "Step",
]

BatchFunction = ArrowFunction
FrameFunction = Callable[["DataFrame"], "DataFrame"]
_NO_IDS: Mapping[int, str] = {}
KEYED_KINDS = frozenset(
    {"key_by", "aggregate", "deduplicate", "window", "join", "process", "broadcast"}
)
"""Steps with `Step.keyed`; they run in the chained task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A function between a source and its sinks.

    Attributes:
        kind: ``map_batches``, ``transform`` or one of `KEYED_KINDS`.
        name, uid: of the operator.
        function: Arrow function or frame function, by ``kind``; None: a keyed step.
        output_mode: of a transform: Spark's output mode, in lower case; None: not set.
        deterministic: the user promises that a replay returns the same rows (`two-phase-repair`
            and `stateful-replay`).
        force_rescale: of a transform: the user allows to run it in parts.
        policy: of ``map_batches``: for records that it raises for; None: the task fails.
        keyed: how rows get their key, or a function with keyed state; None: neither.
        state: of ``map_batches``: its operator state; None: it has none.
        broadcasts: of ``map_batches``: the last steps of the broadcast streams that it reads, by
            name; "": the only one.
        waits: of ``broadcast``: its readers wait for its first row.
        other: of a join: the pipeline of its right side, up to its key; without sinks.
    """

    kind: str
    name: str
    uid: str | None
    function: BatchFunction | FrameFunction | None = None
    output_mode: str | None = None
    deterministic: bool = True
    force_rescale: bool = False
    policy: Policy | None = None
    keyed: KeyBy | KeyedFunction | None = None
    state: OperatorState | None = None
    broadcasts: Mapping[str, Step] = field(default_factory=dict)
    waits: bool = False
    other: Pipeline | None = None

    def __post_init__(self) -> None:
        # A text such as "false" would count as True, and promise a repair that is not exact.
        for flag in ("deterministic", "force_rescale"):
            if not isinstance(given := getattr(self, flag), bool):
                raise ConfigError(
                    "a flag of a function is neither True nor False",
                    {"function": self.name, "flag": flag, "given": repr(given)},
                    f"Give {flag} as a Python bool.",
                )

    def chained(self, operator_id: str, ids: Mapping[int, str] = _NO_IDS) -> ChainedFunction:
        """The function of a chained pipeline as the tasks call it.

        Args:
            ids: operator ids of broadcast steps by ``id(step)``.
        """
        function = self.function
        return ChainedFunction(
            name=self.name,
            operator_id=operator_id,
            function=cast(BatchFunction | None, function),
            policy=self.policy,
            takes_context=function is not None and takes_context(function),
            keyed=self.keyed,
            state=self.state,
            broadcasts=tuple(
                Broadcast(name=name, operator_id=ids.get(id(step), ""), waits=step.waits)
                for name, step in self.broadcasts.items()
            ),
        )

    @property
    def late_topic(self) -> str | None:
        """Where late rows go; None: nowhere."""
        return None if isinstance(self.keyed, KeyBy | None) else self.keyed.late_topic

    @property
    def remembers(self) -> bool:
        """Whether its output depends on more than the rows that it gets."""
        return self.state is not None or self.keyed is not None or bool(self.broadcasts)


@dataclass(slots=True)
class Pipeline:
    """One source, its functions and its sinks. Pipelines share no region."""

    source: Source
    steps: list[Step] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)

    @property
    def event_time(self) -> EventTime | None:
        """Of the source; None: its rows have none."""
        return self.source.event_time if isinstance(self.source, TimedSource) else None

    @property
    def is_chained(self) -> bool:
        """Whether one worker can read, apply and write, without a detour through the JVM."""
        return all(step.kind != "transform" for step in self.steps)

    @property
    def is_keyed(self) -> bool:
        """Whether its rows have keys, and its functions may keep state for them."""
        return any(step.keyed is not None for step in self.steps)

    @property
    def broadcast(self) -> Step | None:
        """Its last function, if that makes it a broadcast stream; then it has no sink."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.kind == "broadcast" else None

    @property
    def is_stateless(self) -> bool:
        """Whether the output of a range of records depends on nothing else."""
        return not any(step.remembers for step in self.steps)


class Engine(enum.Enum):
    """The engine that runs a job's regions."""

    AUTO = "auto"
    MICRO_BATCH = "micro-batch"
    CONTINUOUS = "continuous"


class Recovery(enum.Enum):
    """The work that the failure of one task may repeat or lose."""

    REGION = "region"  # repeats its region's epoch, if Spark does not retry the task
    SINGLE_POINT = "single-point"  # repeats the task alone
    APPROXIMATE = "approximate"  # loses the records that the task had to read
