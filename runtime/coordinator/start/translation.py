"""Translates the record of another job into the first record of this one. Pure.

The old record may come from another program, with other operators, topics, clusters and regions.
`Translation` names what the new job takes over, and what it leaves.
"""

import enum
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from sluice.runtime.coordinator.policy.assignment import assignment_of, hand_over, recorded
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.coordinator.start.keyed_matching import (
    TakenTables,
    tables_of,
    verify_partitioning,
)
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.functions.operator_state import OPERATOR_LIST_KIND
from sluice.runtime.functions.record_counts import COUNTS_KIND
from sluice.runtime.graph.failover_regions import region_name
from sluice.runtime.graph.operator_matching import Match, match_operators
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    RegionStatus,
    StateEntry,
)
from sluice.runtime.model.spelling import choice_of
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.storage.file_system_opening import absolute_uri

__all__ = ["RestoreRules", "TakenState", "Translation", "checked_origin", "translate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRules:
    """The user's limits of a restore.

    Attributes:
        topic_map: the new name of each topic that is another one now. A topic with its own name
            says that the topic of the new cluster has the same records at the same offsets.
        by_name: whether operators may match by name.
        allow_non_restored_state: whether state without an operator is left out.
    """

    topic_map: Mapping[str, str] = field(default_factory=dict)
    by_name: bool = True
    allow_non_restored_state: bool = False

    @classmethod
    def of(
        cls,
        origin: object,
        topic_map: Mapping[str, str] | None,
        match: str,
        *,
        allow_non_restored_state: bool,
    ) -> Self:
        """The rules as `Job` takes them; ConfigError if they are unknown or have no effect."""
        remedy = "Use name, or strict to match by uid and id alone."
        rules = cls(
            topic_map=dict(topic_map or {}),
            by_name=choice_of(_Match, match, setting="match", remedy=remedy) is _Match.NAME,
            allow_non_restored_state=allow_non_restored_state,
        )
        if rules != cls() and (origin is None or isinstance(origin, int)):
            raise ConfigError(
                "topic_map, match and allow_non_restored_state need a restore from a URI",
                {"restore_from": origin},
                "Remove them, or give restore_from the URI of a savepoint or checkpoint.",
            )
        return rules


class _Match(enum.Enum):
    NAME = "name"
    STRICT = "strict"


def checked_origin(given: int | str | os.PathLike[str] | None) -> int | str | None:
    """A checkpoint id, or a URI with scheme; ConfigError if it is neither."""
    if given is None or isinstance(given, int):
        return given
    text = os.fspath(given)
    if not text.strip() or text.strip().isdecimal():
        raise ConfigError(
            "restore_from is neither a checkpoint id nor a path",
            {"restore_from": repr(given)},
            "Give the id as an int, or the path or URI of a savepoint or checkpoint.",
        )
    return absolute_uri(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenState:
    """Spark's state of a region that a region of the new job takes over.

    Attributes:
        before: the old region's record.
        region: name of the new region.
        sources: new operator ids of its sources, by their old ones.
        topics: see `RestoreRules.topic_map`.
    """

    before: RegionRecord
    region: str
    sources: Mapping[str, str]
    topics: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The parts of the old record that the new job takes over.

    Attributes:
        record: the old record with the ids, topics and region names of the new job. Its splits
            are at their ends. Its regions are the old ones.
        matches: see `match_operators`.
        taken: Spark's state, by name of the new region.
        dropped: state that no operator takes, for people.
        new_sources: operator ids of sources without positions.
        mapped: sources and topics, by their new names, that ``topic_map`` names.
    """

    record: CheckpointRecord
    matches: tuple[Match, ...]
    taken: Mapping[str, TakenState]
    dropped: tuple[str, ...]
    new_sources: frozenset[str]
    mapped: frozenset[tuple[str, str]] = frozenset()


def translate(record: CheckpointRecord, plan: JobPlan, rules: RestoreRules) -> Translation:
    """Match the operators, and give the record the names and ids of the new job.

    Raises:
        ConfigError: ``topic_map`` does not fit the record, or names are ambiguous.
        WrongJobError: no operator takes some state, and the rules do not allow that. Or the rows of
            a keyed function have other partitions than its state.
        DamagedCheckpointError: positions and assignment of the record do not fit.
    """
    verify_partitioning(record, plan)
    return _Translator(record, plan, rules).translation()


class _Translator:
    def __init__(self, record: CheckpointRecord, plan: JobPlan, rules: RestoreRules) -> None:
        self._record, self._plan, self._rules = record, plan, rules
        self._regions = hand_over(record.regions, recorded(record))
        self._old = {node.operator_id: node for node in record.graph}
        self._dropped: list[str] = []
        self._taken: dict[str, TakenState] = {}
        self._mapped: set[tuple[str, str]] = set()
        _require_topics(rules.topic_map, self._regions)

    @cached_property
    def _matches(self) -> tuple[Match, ...]:
        return match_operators(
            self._record.graph,
            self._plan.graph,
            with_state=self._with_state,
            topics=self._rules.topic_map,
            by_name=self._rules.by_name,
        )

    @cached_property
    def _ids(self) -> dict[str, str]:
        return {match.before.operator_id: match.now.operator_id for match in self._matches}

    @cached_property
    def _with_state(self) -> frozenset[str]:
        sources = {split.source_id for region in self._regions for split in region.splits}
        states = {
            entry.operator_id
            for region in self._regions
            for entry in region.operator_states
            if entry.kind != COUNTS_KIND
        }
        frames = {
            node.operator_id
            for region in self._regions
            if _has_spark_state(region)
            for node in self._transforms_of(region)
        }
        tables = {table.operator_id for table in tables_of(self._record)}
        return frozenset(sources | states | frames | tables)

    def translation(self) -> Translation:
        regions = [found for old in self._regions if (found := self._region(old)) is not None]
        positions = {split.source_id for region in regions for split in region.splits}
        matched = {match.now.operator_id for match in self._matches}
        planned = {source for region in self._plan.regions for source in region.source_ids}
        known = {region.region for region in regions}
        # A region whose state begins empty takes the positions of other regions.
        regions += [
            RegionRecord(region=new.name, attempt_id=0)
            for new in self._plan.regions
            if new.name not in known and (new.stateful or not matched.intersection(new.source_ids))
        ]
        twice = [name for name, times in Counter(r.region for r in regions).items() if times > 1]
        if twice:
            raise ConfigError(
                "two regions of the checkpoint would have one name",
                {"regions": ",".join(sorted(twice))},
                "Restore with the old names of the sources, and rename them later.",
            )
        if self._dropped and not self._rules.allow_non_restored_state:
            raise self._left_over()
        return Translation(
            record=replace(
                self._record,
                graph=self._plan.graph,
                regions=tuple(regions),
                assignment=assignment_of(regions),
            ),
            matches=self._matches,
            taken=self._taken,
            dropped=tuple(self._dropped),
            new_sources=frozenset(planned - positions - matched),
            mapped=frozenset(self._mapped),
        )

    def _left_over(self) -> WrongJobError:
        how = "" if self._rules.by_name else " match='strict' does not match by name."
        return WrongJobError(
            "no operator of the job takes some state of the checkpoint",
            {
                "job": self._plan.name,
                "state": "; ".join(self._dropped),
                "job_has": ", ".join(map(_described, self._plan.graph)),
            },
            "Set the uid or the name that the operator had, or pass allow_non_restored_state=True "
            f"to drop this state.{how}",
        )

    # --- regions ----------------------------------------------------------------------------------

    def _region(self, old: RegionRecord) -> RegionRecord | None:
        """The region under its new name; None: none of its sources is in the job."""
        splits = tuple(self._splits(old))
        states = tuple(self._states(old))
        name = self._name_now(old)
        state = self._spark_state(old, name)
        keyed = self._keyed_state(old, is_read=name is not None)
        if name is None:
            self._dropped += [
                f"{entry.kind} of {self._named(entry.operator_id)} in region {old.region}"
                for entry in states
                if entry.kind != COUNTS_KIND
            ]
            return None
        return replace(
            old,
            region=name,
            attempt_id=0,
            status=RegionStatus.COMPLETED,
            snapshot_id=None,
            query_id="",
            batch_id=old.batch_id if state else None,
            splits=splits,
            offset_log_version=2,
            other_offsets_sha256="",
            state=old.state if state else None,
            committables=(),
            operator_states=states,
            keyed_state=keyed,
        )

    def _keyed_state(self, old: RegionRecord, *, is_read: bool) -> KeyedState | None:
        taken = TakenTables(
            ids=self._ids if is_read else {},
            plan=self._plan,
            topics=self._rules.topic_map,
            names={operator_id: _described(node) for operator_id, node in self._old.items()},
        )
        keyed, dropped = taken.of(old.keyed_state)
        self._dropped += [each for each in dropped if each not in self._dropped]
        return keyed

    def _splits(self, old: RegionRecord) -> Iterable[SplitRange]:
        lost: dict[str, set[str]] = {}
        topics = self._rules.topic_map
        for split in old.splits:
            source_id = self._ids.get(split.source_id)
            if source_id is None:
                lost.setdefault(split.source_id, set()).add(split.topic)
                continue
            now = replace(split.at_end(), source_id=source_id)
            if split.topic in topics:
                # Leader epochs belong to one log: the other log has its own.
                topic = topics[split.topic]
                now = replace(now, topic=topic, leader_epoch=None, leader_epoch_end=None)
                self._mapped.add((source_id, topic))
            yield now
        for source_id, names in lost.items():
            found = f"positions of {self._named(source_id)}: topics {','.join(sorted(names))}"
            if found not in self._dropped:
                self._dropped.append(found)

    def _states(self, old: RegionRecord) -> Iterable[StateEntry]:
        for entry in old.operator_states:
            operator_id = self._ids.get(entry.operator_id)
            is_list = entry.kind == OPERATOR_LIST_KIND
            if operator_id is not None and (not is_list or operator_id in self._lists):
                yield replace(entry, operator_id=operator_id)
            elif entry.kind != COUNTS_KIND:  # counts of a function that has left are not needed
                self._dropped.append(
                    f"{entry.kind} of {self._named(entry.operator_id)} in region {old.region}"
                )

    @cached_property
    def _lists(self) -> frozenset[str]:
        return frozenset(i for region in self._plan.regions for i in region.list_ids)

    def _spark_state(self, old: RegionRecord, name: str | None) -> bool:
        """Whether the region of this name takes the old region's Spark state."""
        if not _has_spark_state(old):
            return False
        frames = self._transforms_of(old)
        takers = [new for new in self._plan.regions if new.name == name and new.stateful]
        if takers and name is not None and any(each.operator_id in self._ids for each in frames):
            sources = {
                split.source_id: self._ids[split.source_id]
                for split in old.splits
                if split.source_id in self._ids
            }
            self._taken[name] = TakenState(
                before=old, region=name, sources=sources, topics=self._rules.topic_map
            )
            return True
        names = ", ".join(_described(node) for node in frames) or "a transform"
        self._dropped.append(f"Spark's state of region {old.region}: {names}")
        return False

    def _name_now(self, old: RegionRecord) -> str | None:
        """The name that the region has now; None: the job does not read its source."""
        source = self._source_of(old)
        match = next((m for m in self._matches if source is not None and m.before == source), None)
        if match is None:
            return None
        before, now = region_name(match.before.name), region_name(match.now.name)
        readers = [r.name for r in self._plan.regions if match.now.operator_id in r.source_ids]
        is_alone = sum(self._source_of(each) == source for each in self._regions) == 1
        if is_alone and len(readers) == 1:
            return readers[0]
        return now + old.region.removeprefix(before)

    def _source_of(self, region: RegionRecord) -> OperatorNode | None:
        """The source that a region reads; a region without splits is named after it."""
        read = next((self._old.get(split.source_id) for split in region.splits), None)
        if read is not None:
            return read
        for node in self._record.graph:
            named = re.fullmatch(re.escape(region_name(node.name)) + r"(-\d+)?", region.region)
            if node.kind == "source" and named:
                return node
        return None

    def _transforms_of(self, region: RegionRecord) -> list[OperatorNode]:
        """The frames between a region's source and its sinks."""
        source = self._source_of(region)
        below = set[str]() if source is None else {source.operator_id}
        found = []
        for node in self._record.graph:
            if below.intersection(node.upstream):
                below.add(node.operator_id)
                if node.kind == "transform":
                    found.append(node)
        return found

    def _named(self, operator_id: str) -> str:
        node = self._old.get(operator_id)
        return operator_id if node is None else _described(node)


def _has_spark_state(region: RegionRecord) -> bool:
    state = region.state
    return state is not None and region.batch_id is not None and bool(state.operators)


def _described(node: OperatorNode) -> str:
    uid = f" uid={node.uid}" if node.uid else ""
    return f"{node.kind} {node.name!r} ({node.operator_id}{uid})"


def _require_topics(topics: Mapping[str, str], regions: Sequence[RegionRecord]) -> None:
    read = {split.key[:2] for region in regions for split in region.splits}
    unknown = sorted(topics.keys() - {topic for _, topic in read})
    now = Counter((source_id, topics.get(topic, topic)) for source_id, topic in read)
    joined = sorted(topic for (_, topic), times in now.items() if times > 1)
    if unknown or joined:
        raise ConfigError(
            "topic_map does not fit the topics of the checkpoint",
            {
                "unknown": ",".join(unknown),
                "twice": ",".join(joined),
                "checkpoint_has": ",".join(sorted({topic for _, topic in read})),
            },
            "Name each topic of the checkpoint that is another one now, each with its own name.",
        )
