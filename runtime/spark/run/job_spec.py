"""A described job, as the engines get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.coordinator.start.translation import RestoreRules
from sluice.runtime.election.ha_settings import HaSettings
from sluice.runtime.graph.pipeline import Engine, Pipeline, Recovery
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.state.state_settings import StateSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Settings and pipelines of a job; the attributes are those of `sluice.Job`, checked.

    Attributes:
        checkpoint_dir: absolute URI.
        spark_checkpoint_dir: for Spark's logs and state; None: ``checkpoint_dir``.
        storage_options: of object stores.
        settings: of its checkpoints and failures.
        regions: number of parts of each source; None: chosen at the start.
        restore_from: checkpoint id, or URI of another job's state.
        restore_rules: of a restore from a URI.
        ha: how the leader is elected; None: this process leads.
        service: where the driver's service listens.
        pipelines: in the order in which they were described.
        uid: known before the start, if topics are named after it; None: it is not.
        is_led_elsewhere: the coordinator runs in a process of its own.
    """

    name: str
    spark: SparkSession
    checkpoint_dir: str
    spark_checkpoint_dir: str | None
    storage_options: Mapping[str, str] = field(repr=False)
    settings: CheckpointSettings
    regions: int | None
    engine: Engine
    coordinator_lost_timeout_s: float | None
    resource_timeout_s: float | None
    recovery: Recovery
    task_memory_mib: int
    state: StateSettings
    restore_from: int | str | None
    restore_rules: RestoreRules
    ha: HaSettings | None
    service: ServiceSettings
    metrics_port: int | None
    metrics_host: str
    registry: str | None
    listeners: Sequence[ProgressListener]
    pipelines: Sequence[Pipeline] = ()
    uid: str | None = None
    is_led_elsewhere: bool = False
