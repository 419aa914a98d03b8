"""The restore of a job from a URI: its I/O, and the comparison of Spark's stateful operators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sluice.runtime.checkpoint.format.committable_kinds import installed_kinds
from sluice.runtime.coordinator.start.restoring import RestoredState, RestoreRequest
from sluice.runtime.errors import WrongJobError
from sluice.runtime.savepoint.restored_files import copy_keyed_files
from sluice.runtime.savepoint.savepoint import Savepoint, open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.microbatch.state_restore import copy_states
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.region_layout import Layout
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["origin_of", "require_fitting"]

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
    if not isinstance(job.restore_from, str):
        return job.restore_from
    return RestoreRequest(
        uri=job.restore_from,
        rules=job.restore_rules,
        clusters=layout.clusters,
        open=partial(_opened, job.restore_from, jvm, job.storage_options),
        transferred=installed_kinds().transferred,
        require_fitting=partial(require_fitting, layout.analyses),
        copy=partial(copy_states, fs=files),
        copy_keyed=partial(copy_keyed_files, fs=files),
    )


def _opened(
    uri: str,
    jvm: Any,  # noqa: ANN401 - py4j's view
    storage_options: Mapping[str, str],
) -> Savepoint:
    savepoint = open_savepoint(uri, jvm=jvm, storage_options=storage_options)
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
