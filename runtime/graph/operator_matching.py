"""Matches the operators of a checkpoint with those of the job that restores it. Pure."""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import OperatorNode

__all__ = ["Match", "MatchedBy", "match_operators"]


class MatchedBy(enum.Enum):
    """The property that two operators share."""

    UID = "uid"
    ID = "id"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An operator of the checkpoint, and the one that takes its state."""

    before: OperatorNode
    now: OperatorNode
    by: MatchedBy


def match_operators(
    before: Sequence[OperatorNode],
    now: Sequence[OperatorNode],
    *,
    with_state: AbstractSet[str],
    topics: Mapping[str, str],
    by_name: bool = True,
) -> tuple[Match, ...]:
    """Match operators of one kind by uid, then by id, then by name; each at most once.

    Two operators with different uids never match by name. Sources are named after their topics, and
    functions after their source unless the user names them. So a source of renamed topics matches
    by its new name, and so do the functions that are named after it.

    Args:
        before: of the checkpoint, upstream ones first.
        now: of the job.
        with_state: ids of operators in ``before`` that have state.
        topics: new names of topics.
        by_name: whether names count.
    Raises:
        ConfigError: several operators with state could match by name.
    """
    by_id = {node.operator_id: node for node in now}
    found = {
        old.operator_id: Match(before=old, now=new, by=_by(old, new))
        for old in before
        if (new := by_id.get(old.operator_id)) is not None and new.kind == old.kind
    }
    given = {node.operator_id: node.name for node in before}
    for names in (given, _names_now(before, topics)) if by_name else ():
        taken = {match.now.operator_id for match in found.values()}
        free = [new for new in now if new.operator_id not in taken]
        left = [old for old in before if old.operator_id not in found]
        found |= {
            match.before.operator_id: match
            for match in _by_name(left, free, names, with_state=with_state)
        }
    return tuple(found[old.operator_id] for old in before if old.operator_id in found)


def _by(old: OperatorNode, new: OperatorNode) -> MatchedBy:
    return MatchedBy.UID if old.uid and old.uid == new.uid else MatchedBy.ID


def _by_name(
    left: Sequence[OperatorNode],
    free: Sequence[OperatorNode],
    names: Mapping[str, str],
    *,
    with_state: AbstractSet[str],
) -> Iterator[Match]:
    """The matches among operators that have none yet; ``names`` of the old ones by id."""
    for old in left:
        kind, name = old.kind, names[old.operator_id]
        rivals = [each for each in left if (each.kind, names[each.operator_id]) == (kind, name)]
        named = [new for new in free if (new.kind, new.name) == (kind, name)]
        mine = [new for new in named if not (old.uid and new.uid)]
        if len(mine) == len(rivals) == 1:
            yield Match(before=old, now=mine[0], by=MatchedBy.NAME)
        elif mine and any(each.operator_id in with_state for each in rivals):
            raise _ambiguous(old, rivals, mine)


def _names_now(before: Iterable[OperatorNode], topics: Mapping[str, str]) -> dict[str, str]:
    """The names that operators have after topics were renamed, by id."""
    found: dict[str, str] = {}
    sources: dict[str, tuple[str, str]] = {}  # of each operator: name of its source, before and now
    for node in before:
        if node.kind == "source":
            sources[node.operator_id] = node.name, _renamed(node.name, topics)
        elif node.upstream and node.upstream[0] in sources:
            sources[node.operator_id] = sources[node.upstream[0]]
        old, new = sources.get(node.operator_id, ("", ""))
        is_after = node.name == old or node.name.startswith(f"{old}-")
        found[node.operator_id] = new + node.name.removeprefix(old) if is_after else node.name
    return found


def _renamed(source: str, topics: Mapping[str, str]) -> str:
    """The name of a source, which ends with its topics: ``kafka-a,b``."""
    first, *others = source.split(",")
    known = [topic for topic in topics if first == topic or first.endswith(f"-{topic}")]
    for topic in sorted(known, key=len)[-1:]:
        first = first.removesuffix(topic) + topics[topic]
    return ",".join([first, *(topics.get(each, each) for each in others)])


def _ambiguous(
    old: OperatorNode, rivals: Sequence[OperatorNode], mine: Sequence[OperatorNode]
) -> ConfigError:
    return ConfigError(
        "several operators have the name of an operator with state",
        {
            "kind": old.kind,
            "name": old.name,
            "checkpoint_has": ",".join(each.operator_id for each in rivals),
            "job_has": ",".join(each.operator_id for each in mine),
        },
        "Set the uid that the operator had, or a name that only one operator has.",
    )
