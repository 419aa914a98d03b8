"""Splits pipelines at ``key_by``: one part writes a repartition topic, the next one reads it.

Both parts are pipelines of the same job, with regions of their own. A join is a pipeline that reads
one topic with two sides; each side is the end of a pipeline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.runtime.contracts import (
    JobTopic,
    JobTopicSink,
    JobTopicSource,
    Repartition,
    RepartitioningSource,
    Source,
    TimedSource,
)
from sluice.runtime.contracts.keyed import KeyBy
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.operator_ids import operator_id
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.keyed.row_keys import RowKeys

__all__ = ["Splitting", "on_topics"]


@dataclass(frozen=True, slots=True)
class Splitting:
    """Splits the pipelines of one job.

    Attributes:
        job_name, job_uid: of the job; without a uid the result is for display.
        regions: that the user has set for each source.
    """

    job_name: str
    job_uid: str = ""
    regions: int = 1

    def pipelines(self, described: Sequence[Pipeline]) -> tuple[Pipeline, ...]:
        """All parts of all pipelines, writers before readers.

        Raises:
            ConfigError: rows cannot go through a topic there.
        """
        joins = [s for each in described for s in each.steps if s.other is not None]
        sides = [join.other for join in joins]
        for at, side in enumerate(sides):
            if any(side is before for before in sides[:at]):
                raise ConfigError(
                    "a stream is the other side of two joins",
                    {"joins": ",".join(join.name for join in joins if join.other is side)},
                    "Begin the other side of each join with a source of its own.",
                )
        return tuple(
            part
            for pipeline in described
            if not any(pipeline is side for side in sides)
            for part in self._parts(pipeline)
        )

    def _parts(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        at = _first_cut(pipeline.steps)
        if at is None:
            yield pipeline
            return
        step = pipeline.steps[at]
        if step.other is None:
            yield from self._keyed(pipeline, at)
        else:
            yield from self._joined(pipeline, at, step.other)

    def _keyed(self, pipeline: Pipeline, at: int) -> Iterator[Pipeline]:
        step = pipeline.steps[at]
        (sink,), source = self._topic(pipeline.source, step, [step])
        yield replace(pipeline, steps=pipeline.steps[:at], sinks=[sink])
        yield from self._parts(_reading(pipeline, source, step, pipeline.steps[at + 1 :]))

    def _joined(self, left: Pipeline, at: int, right: Pipeline) -> Iterator[Pipeline]:
        join = left.steps[at]
        if right is left or right.sinks:
            raise ConfigError(
                "the right side of a join is the left one, or has sinks",
                {"join": join.name, "source": right.source.name},
                "Begin the other side with a source of its own, and end it with key_by.",
            )
        left_steps, left_key = _before_join(left.steps[:at], join)
        right_steps, right_key = _before_join(right.steps, join)
        sinks, source = self._topic(left.source, join, [left_key, right_key])
        yield from self._parts(Pipeline(left.source, left_steps, [sinks[0]]))
        yield from self._parts(Pipeline(right.source, right_steps, [sinks[1]]))
        key = replace(left_key, name=f"{join.name}-key", uid=_suffixed(join.uid, "key"))
        rest = [replace(join, other=None), *left.steps[at + 1 :]]
        yield from self._parts(_reading(left, source, key, rest))

    def _topic(
        self, source: Source, operator: Step, keys: Sequence[Step]
    ) -> tuple[tuple[JobTopicSink, ...], JobTopicSource]:
        """Both ends of the topic of an operator."""
        if not isinstance(source, RepartitioningSource):
            raise ConfigError(
                "a source has no repartition topics, which key_by needs",
                {"source": source.name, "key_by": operator.name},
                "Use a KafkaSource, or key_by(…, partitioned=True) if its splits have the keys.",
            )
        wanted = [k.keyed.partitions for k in keys if isinstance(k.keyed, KeyBy)]
        sinks, reader = source.repartition(
            Repartition(
                name=operator.name,
                uid=operator.uid,
                partitions=max((each for each in wanted if each is not None), default=None),
                regions=self.regions,
                keys=tuple(
                    RowKeys(key.keyed, key.name) for key in keys if isinstance(key.keyed, KeyBy)
                ),
                event_time=source.event_time if isinstance(source, TimedSource) else None,
            )
        )
        source_id = operator_id(kind="source", name=reader.name, upstream=(), uid=reader.uid)
        identity = self.job_name, self.job_uid, source_id
        return tuple(sink.of_job(*identity) for sink in sinks), reader.of_job(*identity)


def _first_cut(steps: Sequence[Step]) -> int | None:
    """The position of the first step before which rows go through a topic."""
    joins = {at for at, step in enumerate(steps) if step.other is not None}
    for at, step in enumerate(steps):
        key_by = step.keyed
        is_open = isinstance(key_by, KeyBy) and not key_by.partitioned and key_by.decode is None
        if at in joins or (is_open and at + 1 not in joins):
            _require_chained(steps, step)
            return at
    return None


def _require_chained(steps: Sequence[Step], key_by: Step) -> None:
    planned = [step.name for step in steps if step.kind == "transform"]
    if planned:
        raise ConfigError(
            "key_by follows a transform, which Spark plans",
            {"key_by": key_by.name, "transforms": ",".join(planned)},
            "Use map_batches before key_by, or Spark's own groupBy inside the transform.",
        )


def _before_join(steps: Sequence[Step], join: Step) -> tuple[list[Step], Step]:
    """The steps of one side before the topic, and the step with the key of its rows."""
    keys = [at for at, step in enumerate(steps) if isinstance(step.keyed, KeyBy)]
    if not keys:
        raise ConfigError(
            "a side of a join has no key",
            {"join": join.name, "steps": ",".join(step.name for step in steps)},
            "Call key_by on both streams before join.",
        )
    is_last = keys[-1] == len(steps) - 1  # else its operators need the key, too
    return list(steps[: keys[-1]] if is_last else steps), steps[keys[-1]]


def _reading(
    pipeline: Pipeline, source: JobTopicSource, key: Step, rest: Sequence[Step]
) -> Pipeline:
    """The part after a topic; its rows have their keys."""
    assert isinstance(key.keyed, KeyBy)
    key_by = replace(key.keyed, decode=source.decoder())
    return replace(pipeline, source=source, steps=[replace(key, keyed=key_by, policy=None), *rest])


def _suffixed(uid: str | None, suffix: str) -> str | None:
    return None if uid is None else f"{uid}-{suffix}"


def on_topics(region: Region, topics: Mapping[str, JobTopic]) -> Region:
    """A region whose ends know the topics of this run, by operator id of their source."""
    sinks = {
        i: sink.on_topic(topics[sink.source_id]) if isinstance(sink, JobTopicSink) else sink
        for i, sink in region.sinks.items()
    }
    source, steps = region.pipeline.source, list(region.pipeline.steps)
    if isinstance(source, JobTopicSource):
        source = source.on_topic(topics[region.source_id])
        key_by = steps[0].keyed
        assert isinstance(key_by, KeyBy)  # as `Splitting` has made it
        steps[0] = replace(steps[0], keyed=replace(key_by, decode=source.decoder()))
    pipeline = replace(region.pipeline, source=source, steps=steps)
    return replace(region, pipeline=pipeline, sinks=sinks)
