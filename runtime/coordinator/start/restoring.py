"""Makes the first checkpoint of a new job from a savepoint or checkpoint of another one."""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sluice.runtime.contracts import SplitEnumerator
from sluice.runtime.coordinator.committing.commit_steps import Steps
from sluice.runtime.coordinator.policy.assignment import assignment_of, without_topics
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.coordinator.start.recovery import first_regions, verify_same_job
from sluice.runtime.coordinator.start.rescaling import redistributed
from sluice.runtime.coordinator.start.topic_restores import copy_settings, with_job_topics
from sluice.runtime.coordinator.start.translation import (
    RestoreRules,
    TakenState,
    Translation,
    translate,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import (
    RESTORED_FROM_URI,
    RESTORED_OPERATORS,
    CheckpointRecord,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.restored_files import restored_path
from sluice.runtime.savepoint.savepoint import Savepoint

__all__ = [
    "RestoreRequest",
    "RestoredState",
    "restored_regions",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredState:
    """Spark's state of a region, before and after its copy.

    Attributes:
        taken: the old state.
        now: the new region in checkpoint 0; it names the new location and query.
    """

    taken: TakenState
    now: RegionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """A restore that the user requests, with its I/O. The start calls the functions in its thread.

    Attributes:
        uri: of the savepoint or checkpoint, with scheme.
        rules: what the user allows.
        clusters: id of the Kafka cluster that each source of the job reads, by operator id.
        open: opens the savepoint and verifies all its files.
        transferred: an operator's state of a region, by its old name, as another job may have it;
            raises if it names files of the old job.
        require_fitting: raises if Spark's operators differ from those of the job's frames.
        copy: copies Spark's files, whole and synced, under names that no other start uses. Yields
            between two files.
        copy_keyed: the same with the files of keyed state, from the paths in the savepoint to those
            in the checkpoint directory.
    """

    uri: str
    open: Callable[[], Savepoint]
    rules: RestoreRules = field(default_factory=RestoreRules)
    clusters: Mapping[str, str] = field(default_factory=dict)
    transferred: Callable[[StateEntry, str], StateEntry] = lambda entry, _: entry
    require_fitting: Callable[[Sequence[RestoredState]], None] = lambda _: None
    copy: Callable[[Savepoint, Sequence[RestoredState]], Iterator[None]] = lambda *_: iter(())
    copy_keyed: Callable[[Savepoint, Mapping[FileReference, str]], Iterator[None]] = lambda *_: (
        iter(())
    )


def restored_regions(
    request: RestoreRequest,
    plan: JobPlan,
    sources: Mapping[str, SplitEnumerator],
    *,
    session: str,
    require_known: Callable[[CheckpointRecord], None],
    timeout_s: float,
) -> Steps[tuple[tuple[RegionRecord, ...], dict[str, str]]]:
    """Regions and settings of checkpoint 0, after their state was copied. All checks precede the
    copies, and nothing else is written.

    Args:
        sources: by operator id; they continue at the restored positions.
        session: leader session id, part of the copies' names.
        timeout_s: of one call to a source.
    Raises:
        ConfigError, WrongJobError, SourceChangedError, DataLostError, DamagedCheckpointError,
            UnsupportedFormatError: the job cannot be restored; nothing was changed.
    """
    savepoint = request.open()
    rules = with_job_topics(savepoint.record, plan, request.rules)
    found = translate(_transferred(savepoint.record, request), plan, rules)
    require_known(found.record)
    found = replace(found, record=without_topics(found.record, plan.forgotten))
    _require_same_clusters(savepoint.record, found, plan, request)
    record = _with_positions(found, plan, sources, timeout_s=timeout_s)
    # As at any start: no sink with state has moved, and the regions can replace the old ones.
    verify_same_job(replace(record, job_name=plan.name), plan, (), is_settled=True)
    regions, _ = redistributed(record, plan, attempt_id=0)
    files = {
        file: restored_path(file.path, session=session)
        for region in regions
        if region.keyed_state is not None
        for file in region.keyed_state.files
    }
    regions = tuple(_with_location(region, files, session=session) for region in regions)
    states = [
        RestoredState(taken=found.taken[region.region], now=region)
        for region in regions
        if region.region in found.taken
    ]
    request.require_fitting(states)
    _report(found, request)
    yield "before-restore-copy"
    for _ in chain(request.copy(savepoint, states), request.copy_keyed(savepoint, files)):
        yield "restore-copy"
    yield "after-restore-copy"
    own = copy_settings(savepoint.record, plan)
    return regions, {**_restored_settings(request, found), **own}


def _restored_settings(request: RestoreRequest, found: Translation) -> dict[str, str]:
    """The settings of checkpoint 0 that name its origin."""
    matches = [
        {
            "kind": match.now.kind,
            "name": match.now.name,
            "operator_id": match.now.operator_id,
            "from_name": match.before.name,
            "from_operator_id": match.before.operator_id,
            "matched_by": match.by.value,
        }
        for match in found.matches
    ]
    return {RESTORED_FROM_URI: request.uri, RESTORED_OPERATORS: json.dumps(matches)}


def _transferred(record: CheckpointRecord, request: RestoreRequest) -> CheckpointRecord:
    regions = (
        replace(
            region,
            operator_states=tuple(
                request.transferred(entry, region.region) for entry in region.operator_states
            ),
        )
        for region in record.regions
    )
    return replace(record, regions=tuple(regions))


def _require_same_clusters(
    record: CheckpointRecord, found: Translation, plan: JobPlan, request: RestoreRequest
) -> None:
    """Refuse positions of another cluster, unless the user says that its topics are the same."""
    names = {node.operator_id: node.name for node in plan.graph}
    for source_id, cluster_id in request.clusters.items():
        topics = {
            split.topic
            for region in found.record.regions
            for split in region.splits
            if split.source_id == source_id
        }
        unconfirmed = sorted(t for t in topics if (source_id, t) not in found.mapped)
        if unconfirmed and record.cluster_ids and cluster_id not in record.cluster_ids:
            raise ConfigError(
                "a source reads another Kafka cluster than the checkpoint",
                {
                    "source": names.get(source_id, source_id),
                    "cluster_id": cluster_id,
                    "checkpoint_has": ",".join(record.cluster_ids),
                    "topics": ",".join(unconfirmed),
                },
                "Connect it to the old cluster. If the new cluster has the same records at the "
                'same offsets, say so for each topic: topic_map={"orders": "orders"}.',
            )


def _with_positions(
    found: Translation,
    plan: JobPlan,
    sources: Mapping[str, SplitEnumerator],
    *,
    timeout_s: float,
) -> CheckpointRecord:
    """The record with splits of the topics as they are now, and with those of new sources."""
    adopted: dict[tuple[str, str, int], SplitRange] = {}
    starts: dict[str, tuple[SplitRange, ...]] = {}
    for source_id, source in sources.items():
        if source_id in found.new_sources:
            starts[source_id] = source.resolve_start(timeout_s=timeout_s)
            continue
        mine = [
            split
            for region in found.record.regions
            for split in region.splits
            if split.source_id == source_id
        ]
        other = [split for split in mine if split.key[:2] in found.mapped]
        adopted |= {split.key: split for split in source.adopt(other, timeout_s=timeout_s)}
        positions = [adopted.get(split.key, split) for split in mine]
        source.restore(positions, timeout_s=timeout_s)
    new = {region.region: region.splits for region in first_regions(plan, starts)}
    regions = tuple(
        replace(
            region,
            splits=(
                *(adopted.get(split.key, split) for split in region.splits),
                *new.get(region.region, ()),
            ),
        )
        for region in found.record.regions
    )
    return replace(found.record, regions=regions, assignment=assignment_of(regions))


def _with_location(
    region: RegionRecord, files: Mapping[FileReference, str], *, session: str
) -> RegionRecord:
    """The region in checkpoint 0; its state under a name of this start's own."""
    keyed = region.keyed_state
    if keyed is not None:
        named = tuple(replace(file, path=files[file]) for file in keyed.files)
        region = replace(region, keyed_state=replace(keyed, files=named))
    if region.state is None:
        return region
    location = f"spark/{region.region}/restored-{session}/state"
    return replace(
        region,
        query_id=str(uuid.uuid4()),
        state=replace(region.state, location=location, files=()),
    )


def _report(found: Translation, request: RestoreRequest) -> None:
    before = found.record
    log.info(
        "restore begins: uri=%s job_uid=%s checkpoint_id=%d kind=%s",
        request.uri,
        before.job_uid,
        before.checkpoint_id,
        before.kind.value,
    )
    for match in found.matches:
        log.info(
            "operator matched: kind=%s name=%s id=%s from_name=%s from_id=%s by=%s",
            match.now.kind,
            match.now.name,
            match.now.operator_id,
            match.before.name,
            match.before.operator_id,
            match.by.value,
        )
    for state in found.dropped:
        log.warning("state is not restored: %s", state)
