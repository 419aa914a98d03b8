"""Which engine runs each region of a job: micro-batch runs all, continuous those that suit it."""

import logging
from collections.abc import Mapping, Sequence

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
    """Why a region cannot be continuous; None: it can, as far as is known without asking anybody.

    Args:
        refused: by operator id of a sink, why its cluster allows no continuous tasks.
        session: why Spark's does not; see `ends_quiet_workers`.
    """
    if session is not None:
        return session
    if not region.pipeline.is_chained:
        return "a transform, which is planned by Spark for each batch"
    source = region.pipeline.source
    if not isinstance(source, ContinuousSource):
        return f"the source {source.name}, whose splits cannot be followed"
    bound = source.hindrance()
    if bound is not None:
        return f"{bound}, which asks for epochs that the driver cuts"
    others = [
        sink.name
        for operator_id, sink in region.sinks.items()
        if operator_id not in region.task_sinks
        or not isinstance(region.task_sinks[operator_id].writer_factory(), ContinuousWriterFactory)
    ]
    if others:
        return f"the sink {others[0]}, which is written batch by batch"
    longest_s = _longest_interval_s(region)
    if longest_s is not None and interval_s > longest_s:
        return f"an interval above {longest_s:.0f} s: an open transaction may not grow so old"
    if is_approximate:
        return "recovery='approximate'"
    return next((refused[i] for i in region.sinks if i in refused), None)


def choose_engine(
    engine: Engine,
    regions: Sequence[Region],
    *,
    slots: int,
    interval_s: float,
    is_approximate: bool,
    refused: Mapping[str, str] = _NOTHING,
    session: str | None = None,
) -> frozenset[str]:
    """Names of the regions that run continuously; the others run in micro-batches.

    Each of them keeps a core busy as long as the job runs: with fewer cores than regions one would
    never begin, and no checkpoint would ever be complete (`continuous-order`).

    Args:
        slots: tasks that the session can run at once.
        interval_s: between two barriers.
        refused, session: see `hindrance_of`.
    Raises:
        ConfigError: the continuous engine was asked for, and a region does not suit it, or there
            are too few cores.
    """
    if engine is Engine.MICRO_BATCH:
        return frozenset()
    why = {
        region.name: found
        for region in regions
        if (
            found := hindrance_of(
                region,
                interval_s=interval_s,
                is_approximate=is_approximate,
                refused=refused,
                session=session,
            )
        )
        is not None
    }
    suited = frozenset(region.name for region in regions) - why.keys()
    needed = len(suited) + bool(why)
    if engine is Engine.CONTINUOUS:
        _require(why, needed, slots)
        return suited
    for name, found in why.items():
        log.info("engine: micro-batch: region=%s why=%s", name, found)
    if needed > slots:
        log.info("engine: micro-batch: regions=%d slots=%d", len(suited), slots)
        return frozenset()
    return suited


def choose_parts(partitions: Sequence[int], *, slots: int) -> tuple[int, ...]:
    """In how many continuous regions each source is read, if nobody has said. Pure.

    One after the other goes to the source whose regions have the most partitions, until there is
    no core left, or no region would get a second partition less.

    Args:
        partitions: of each source; >= 0.
        slots: tasks that the session can run at once.
    Returns:
        Of each source, >= 1; their sum is at most ``slots`` where that is not below their number.
    """
    parts = [1] * len(partitions)
    while sum(parts) < slots:
        fullest = max(range(len(parts)), key=lambda i: partitions[i] / parts[i])
        if partitions[fullest] <= parts[fullest]:
            break
        parts[fullest] += 1
    return tuple(parts)


def _longest_interval_s(region: Region) -> float | None:
    """What the sinks' transactions allow."""
    factories = [sink.writer_factory() for sink in region.task_sinks.values()]
    limits = [f.longest_interval_s for f in factories if isinstance(f, ContinuousWriterFactory)]
    return min((limit for limit in limits if limit is not None), default=None)


def _require(why: Mapping[str, str], needed: int, slots: int) -> None:
    if why:
        raise ConfigError(
            "regions of this job cannot be continuous",
            why,
            "Use engine='auto', which runs these in micro-batches, or leave that out.",
        )
    if needed > slots:
        raise ConfigError(
            "a continuous region keeps a core busy, and there are too few",
            {"regions": needed, "slots": slots},
            "Use fewer regions, more cores (local[N] on one machine), or engine='micro-batch'.",
        )
