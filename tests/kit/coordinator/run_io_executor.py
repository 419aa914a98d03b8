"""The executor of a run, over stores and sinks that a test plays."""

from typing import Any

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.coordinator.committing.commit_steps import RunIdentity
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from tests.kit.fakes import FakeSource, ManualClock


def hands_of(
    store: MetadataStore,
    *,
    plan: JobPlan | None = None,
    job_uid: str = "uid",
    session: str = "session",
    attempt_id: int = 0,
    **parts: Any,
) -> IoExecutor:
    """Of a run of one region; ``parts`` are what `IoExecutor` is given besides."""
    sinks = {name: SerialSink(sink) for name, sink in parts.pop("sinks", {}).items()}
    return IoExecutor(
        **{
            "store": store,
            "sinks": sinks,
            "sources": {"source": FakeSource("source", {0: 100})},
            "identity": RunIdentity(
                plan=plan or JobPlan(name="job", regions=(RegionPlan(name="main"),)),
                job_uid=job_uid,
                session=session,
                attempt_id=attempt_id,
                run_attempt=1,
                restored_from=None,
            ),
            "settings": CheckpointSettings(),
            "age_clock": ManualClock(),
            "wall_ms": lambda: 0,
            **parts,
        }
    )
