"""The restore of a job from a URI: its I/O, and the comparison of Spark's stateful operators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.coordinator.start.restoring import RestoredState, RestoreRequest
from sluice.runtime.coordinator.start.translation import RestoreRules
from sluice.runtime.errors import WrongJobError
from sluice.runtime.savepoint.restored_files import copy_keyed_files
from sluice.runtime.savepoint.savepoint import Savepoint, savepoint_at
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.microbatch.state_restore import copy_states
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.region_layout import Layout
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.file_system_opening import open_file_system

__all__ = ["origin_of", "request_of", "require_fitting"]

# Spark's operators, by the step that they run; an aggregation of session windows has its own.
_OPERATORS: Mapping[str, frozenset[str]] = {
    "Aggregate": frozenset({"stateStoreSave", "sessionWindowStateStoreSaveExec"}),
    "Deduplicate": frozenset({"dedupe"}),
    "DeduplicateWithinWatermark": frozenset({"dedupeWithinWatermark"}),
    "Distinct": frozenset({"stateStoreSave"}),
    "FlatMapGroupsWithState": frozenset({"flatMapGroupsWithState"}),
    "FlatMapGroupsInPandasWithState": frozenset({"applyInPandasWithState"}),
    "GlobalLimit": frozenset({"globalLimit"}),
    "TransformWithState": frozenset({"transformWithStateExec"}),
    "TransformWithStateInPySpark": frozenset(
        {"transformWithStateInPandasExec", "transformWithStateInPySparkExec"}
    ),
}


def origin_of(
    job: JobSpec,
    layout: Layout,
    files: FileSystem,
    *,
    jvm: Any,  # noqa: ANN401 - py4j's view
) -> RestoreRequest | int | None:
    """The start of the job: another job's state, one of its own checkpoints, or the newest.

    Args:
        files: the checkpoint directory with Spark's files.
    """
    return request_of(
        job.restore_from,
        job.restore_rules,
        layout.clusters,
        files,
        open_at=partial(open_file_system, jvm=jvm, storage_options=job.storage_options),
        analyses=layout.analyses,
    )


def request_of(
    origin: int | str | None,
    rules: RestoreRules,
    clusters: Mapping[str, str],
    files: FileSystem,
    *,
    open_at: OpenFileSystem,
    analyses: Mapping[str, PlanAnalysis],
) -> RestoreRequest | int | None:
    """As `origin_of`, for a process with or without a Spark session.

    Args:
        origin: checkpoint id, URI, or None for the newest checkpoint.
        rules, clusters: see `RestoreRequest`.
        files: the checkpoint directory with Spark's files.
        open_at: opens a directory.
        analyses: of the regions with Spark's state, by name.
    """
    if not isinstance(origin, str):
        return origin
    return RestoreRequest(
        uri=origin,
        rules=rules,
        clusters=clusters,
        open=partial(_opened, origin, open_at),
        transferred=installed_kinds().transferred,
        require_fitting=partial(require_fitting, analyses),
        copy=partial(copy_states, fs=files),
        copy_keyed=partial(copy_keyed_files, fs=files),
    )


def _opened(uri: str, open_at: OpenFileSystem) -> Savepoint:
    savepoint = savepoint_at(uri, open_at)
    verify(savepoint)
    return savepoint


def require_fitting(analyses: Mapping[str, PlanAnalysis], states: Sequence[RestoredState]) -> None:
    """Compare number and kinds of Spark's stateful operators, before a query starts. Spark itself
    compares them one by one, and their schemas, when it plans the first batch.

    Args:
        analyses: of the regions' frames, by name.
    Raises:
        WrongJobError: they differ.
    """
    for state in states:
        before = state.taken.before.state
        kinds = analyses[state.now.region].stateful_kinds
        assert before is not None  # only such regions are restored
        names = [name for _, name in before.operators]
        if not _may_be(kinds, names):
            raise WrongJobError(
                "a transform has other stateful operators than the checkpoint",
                {
                    "region": state.now.region,
                    "checkpoint_has": ",".join(names),
                    "transform_has": ",".join(kinds),
                },
                "Use the old transform, or give the new one another uid or name and pass "
                "allow_non_restored_state=True to drop the old state.",
            )


def _may_be(kinds: Sequence[str], names: Sequence[str]) -> bool:
    """Whether these steps may run as these operators; steps that are not known may be any."""
    if len(kinds) != len(names):
        return False
    left = Counter(names)
    for kind in kinds:
        name = next((each for each in _OPERATORS.get(kind, ()) if left[each]), None)
        if name is None and kind in _OPERATORS:
            return False
        if name is not None:
            left[name] -= 1
    return True
