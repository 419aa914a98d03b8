"""Stable ids for operators: a restore matches state by them. Pure.

The rule is frozen by golden vectors in the tests: a change would orphan the state of every job.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import OperatorNode

__all__ = ["OperatorSpec", "build_graph", "operator_id", "spark_source_name"]

_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """An operator as the user wrote it, before it has an id.

    Attributes:
        kind: ``source``, ``map_batches``, ``transform``, ``sink``.
        name: for display; part of the id if there is no uid.
        uid: the user's stable id, if there is one; then name and position may change.
        upstream: positions of the operators that feed it, in the order of its inputs.
    """

    kind: str
    name: str
    uid: str | None = None
    upstream: tuple[int, ...] = ()


def operator_id(*, kind: str, name: str, upstream: Sequence[str], uid: str | None = None) -> str:
    """The id of an operator: 32 hexadecimal digits.

    A hash of ``uid`` if there is one, else of kind, name and the ids of the upstream operators. It
    does not depend on parallelism, chaining, regions or downstream operators, so a new sink changes
    no other id.
    """
    rule: list[object] = ["uid", uid] if uid is not None else ["path", kind, name, list(upstream)]
    text = json.dumps(rule, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_DIGITS]


def spark_source_name(source_id: str) -> str:
    """Spark's name of a source in its offset log: letters, digits and underscores."""
    return f"source_{source_id}"


def build_graph(specs: Sequence[OperatorSpec]) -> tuple[OperatorNode, ...]:
    """The job graph with ids, in the order given: upstream operators come first.

    Raises:
        ConfigError: two operators have the same uid, or the same name without a uid.
    """
    _require_distinct(specs)
    nodes: list[OperatorNode] = []
    for spec in specs:
        upstream = tuple(nodes[at].operator_id for at in spec.upstream)
        nodes.append(
            OperatorNode(
                operator_id=operator_id(
                    kind=spec.kind, name=spec.name, upstream=upstream, uid=spec.uid
                ),
                name=spec.name,
                kind=spec.kind,
                upstream=upstream,
                uid=spec.uid or "",
            )
        )
    return tuple(nodes)


def _require_distinct(specs: Iterable[OperatorSpec]) -> None:
    seen: dict[tuple[str, str], int] = {}
    known = list(specs)
    for at, spec in enumerate(known):
        key = ("name", spec.name) if spec.uid is None else ("uid", spec.uid)
        earlier = seen.setdefault(key, at)
        if earlier != at:
            raise ConfigError(
                f"two operators have the same {key[0]} {key[1]!r}",
                {
                    "first": _described(known[earlier], earlier),
                    "second": _described(spec, at),
                },
                f"Give one of them another {key[0]}, or a uid of its own.",
            )


def _described(spec: OperatorSpec, at: int) -> str:
    return f"{spec.kind} {spec.name!r} (operator {at + 1})"
