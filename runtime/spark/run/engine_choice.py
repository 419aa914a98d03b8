"""Chooses the engine of each region: micro-batch runs every region, continuous only some."""

import logging
from collections.abc import Callable, Mapping, Sequence

from sluice.runtime.contracts import ContinuousSource, ContinuousWriterFactory
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Engine

__all__ = ["choose_engine", "choose_parts", "hindrance_of"]

log = logging.getLogger(__name__)

_NOTHING: Mapping[str, str] = {}


def hindrance_of(
    region: Region,
    *,
    interval_s: float,
    is_approximate: bool,
    refused: Mapping[str, str] = _NOTHING,
    session: str | None = None,
) -> str | None:
    """Why a region cannot be continuous; None: it can, as far as is known without a remote call.

    Args:
        refused: the reason why a sink's cluster allows no continuous tasks, by operator id.
        session: the reason why the Spark session does not; see `idle_worker_timeout`.
    """
    if session is not None:
        return session
    if not region.pipeline.is_chained:
        return "a transform, which Spark plans for each batch"
    source = region.pipeline.source
    if not isinstance(source, ContinuousSource):
        return f"the source {source.name}, which has no streaming reader"
    bound = source.hindrance()
    if bound is not None:
        return f"{bound}, which needs epochs that the driver limits"
    batch_only = [
        sink.name
        for operator_id, sink in region.sinks.items()
        if operator_id not in region.task_sinks
        or not isinstance(region.task_sinks[operator_id].writer_factory(), ContinuousWriterFactory)
    ]
    if batch_only:
        return f"the sink {batch_only[0]}, which writes batch by batch"
    longest_s = _longest_interval_s(region)
    if longest_s is not None and interval_s > longest_s:
        return f"an interval above {longest_s:.0f} s: an open transaction would grow too old"
    if is_approximate:
        return "recovery='approximate'"
    return next((refused[i] for i in region.sinks if i in refused), None)


def choose_engine(
    engine: Engine,
    regions: Sequence[Region],
    *,
    slots: int,
    hindrance: Callable[[Region], str | None],
) -> frozenset[str]:
    """Names of the regions that run continuously; all other regions run in micro-batches.

    A continuous region keeps a core busy as long as the job runs. With fewer cores than regions,
    one region would never begin, and no checkpoint would ever be complete (`continuous-order`).

    Args:
        slots: tasks that the session can run at once.
        hindrance: see `hindrance_of`.
    Raises:
        ConfigError: the user chose the continuous engine, but it cannot run a region, or there are
            too few cores.
    """
    if engine is Engine.MICRO_BATCH:
        return frozenset()
    hindrances = {
        region.name: found for region in regions if (found := hindrance(region)) is not None
    }
    continuous = frozenset(region.name for region in regions) - hindrances.keys()
    needed = len(continuous) + bool(hindrances)
    if engine is Engine.CONTINUOUS:
        _require(hindrances, needed, slots)
        return continuous
    for name, found in hindrances.items():
        log.info("engine: micro-batch: region=%s why=%s", name, found)
    if needed > slots:
        log.info("engine: micro-batch: regions=%d slots=%d", len(continuous), slots)
        return frozenset()
    return continuous


def choose_parts(partitions: Sequence[int], *, slots: int) -> tuple[int, ...]:
    """The number of continuous regions for each source, if the user has not set it. Pure.

    Each further region goes to the source whose regions have the most partitions. This ends when no
    core is left, or when every region has one partition.

    Args:
        partitions: of each source; >= 0.
        slots: tasks that the session can run at once.
    Returns:
        One number for each source, >= 1; their sum is at most ``slots`` if there are as many.
    """
    parts = [1] * len(partitions)
    while sum(parts) < slots:
        fullest = max(range(len(parts)), key=lambda i: partitions[i] / parts[i])
        if partitions[fullest] <= parts[fullest]:
            break
        parts[fullest] += 1
    return tuple(parts)


def _longest_interval_s(region: Region) -> float | None:
    """The longest interval that the sinks' transactions allow."""
    factories = [sink.writer_factory() for sink in region.task_sinks.values()]
    limits = [f.longest_interval_s for f in factories if isinstance(f, ContinuousWriterFactory)]
    return min((limit for limit in limits if limit is not None), default=None)


def _require(hindrances: Mapping[str, str], needed: int, slots: int) -> None:
    if hindrances:
        raise ConfigError(
            "regions of this job cannot be continuous",
            hindrances,
            "Use engine='auto', which runs these in micro-batches, or change what hinders them.",
        )
    if needed > slots:
        raise ConfigError(
            "too few cores: each continuous region keeps one busy",
            {"regions": needed, "slots": slots},
            "Use fewer regions, more cores (local[N] on one machine), or engine='micro-batch'.",
        )
