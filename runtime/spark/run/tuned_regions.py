"""The regions of a job with sources and sinks tuned: before the first task, once each start."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from sluice.runtime.contracts import Sink, TunedSink, TunedSource
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.model.task_memory import TaskMemory

__all__ = ["tuned"]

log = logging.getLogger(__name__)

_LOOK_S = 3.0


def tuned(regions: Sequence[Region], *, memory_mib: int) -> tuple[Region, ...]:
    """Their tasks keep to the bound, and sinks compress as their source does, unless told.

    A chained task reads and writes in one process. What goes through Spark's planner is read in
    one and written in another, each of which keeps to the bound.

    Raises:
        ConfigError: what the user's settings ask for does not fit.
    """
    codecs: dict[str, str | None] = {}  # regions of one source share the answer
    return tuple(_tuned(region, codecs, memory_mib) for region in regions)


def _tuned(region: Region, codecs: dict[str, str | None], memory_mib: int) -> Region:
    source, is_chained = region.pipeline.source, region.pipeline.is_chained
    sinks = {i: sink for i, sink in region.sinks.items() if isinstance(sink, TunedSink)}
    reading = source.claimed_bytes if isinstance(source, TunedSource) else 0
    writing = sum(sink.claimed_bytes for sink in sinks.values())
    if isinstance(source, TunedSource):
        source = source.within(
            TaskMemory.of_mib(
                memory_mib,
                claimed_bytes=reading + (writing if is_chained else 0),
                sinks=len(sinks) if is_chained else 0,
            )
        )
        if region.source_id not in codecs and any(s.keeps_compression for s in sinks.values()):
            codecs[region.source_id] = _asked(source)
    memory = TaskMemory.of_mib(
        memory_mib,
        claimed_bytes=writing + (reading if is_chained else 0),
        reads=is_chained,
        sinks=len(sinks),
    )
    made: dict[str, Sink] = {
        i: _tuned_sink(sink, memory, codecs.get(region.source_id)) for i, sink in sinks.items()
    }
    return replace(
        region,
        pipeline=replace(region.pipeline, source=source),
        sinks={**region.sinks, **made},
    )


def _asked(source: TunedSource) -> str | None:
    codec = source.compression(timeout_s=_LOOK_S)
    log.info("compression of the source: source=%s codec=%s", source.name, codec or "unknown")
    return codec


def _tuned_sink(sink: TunedSink, memory: TaskMemory, codec: str | None) -> TunedSink:
    made = sink.within(memory)
    return made.compressed_as(codec) if codec is not None and made.keeps_compression else made
