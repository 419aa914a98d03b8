"""Policies about regions: failover regions, checkpoint handlers, restart strategies, rate limit."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.handlers import (
    Alignment,
    CheckpointHandler,
    GlobalCheckpointHandler,
    HandlerDecision,
    RegionalCheckpointHandler,
)
from sluice.runtime.failover.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    Restarts,
    RestartStrategy,
)
from sluice.runtime.graph.distribution import Distribution, choose_distribution, rescale_channels
from sluice.runtime.graph.failover_regions import failover_regions
from sluice.runtime.graph.graph_model import Edge, JobGraph, Subtask, Vertex
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.rate_limit import PidRateLimit, RateEstimator
from tests.kit.effort import examples

Channel = tuple[Subtask, Subtask]
JOINING = [Distribution.REBALANCE, Distribution.KEY_BY, Distribution.SHUFFLE]


@st.composite
def graphs(draw: st.DrawFn, prefix: str = "") -> JobGraph:
    """Any graph: several sources and sinks, vertices that stand alone, every distribution."""
    vertices: list[Vertex] = []
    edges: list[Edge] = []
    for number in range(draw(st.integers(1, 6))):
        name = f"{prefix}{'abcdef'[number]}"
        vertex = Vertex(vertex_id=name, name=name, kind="any", parallelism=draw(st.integers(1, 5)))
        fed_by = draw(st.lists(st.sampled_from(vertices), unique=True)) if vertices else []
        for upstream in fed_by:
            choices = [Distribution.RESCALE, Distribution.RESCALE, *JOINING]
            if upstream.parallelism == vertex.parallelism:
                choices += [Distribution.FORWARD] * 4
            edges.append(
                Edge(
                    upstream=upstream.vertex_id,
                    downstream=name,
                    distribution=draw(st.sampled_from(choices)),
                )
            )
        vertices.append(vertex)
    return JobGraph(vertices=tuple(vertices), edges=tuple(edges))


def subtasks_of(vertex: Vertex) -> list[Subtask]:
    return [Subtask(vertex.vertex_id, index) for index in range(vertex.subtask_count)]


def channels(graph: JobGraph) -> Iterator[Channel]:
    """Every channel, one by one, as a network would have them."""
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for edge in graph.edges:
        upstream = subtasks_of(vertices[edge.upstream])
        downstream = subtasks_of(vertices[edge.downstream])
        if edge.distribution is Distribution.FORWARD:
            yield from zip(upstream, downstream, strict=True)
        elif edge.distribution is Distribution.RESCALE:
            for at, targets in enumerate(rescale_channels(len(upstream), len(downstream))):
                yield from ((upstream[at], downstream[target]) for target in targets)
        else:
            yield from product(upstream, downstream)


def reached(subtask: Subtask, pairs: Iterable[Channel]) -> frozenset[Subtask]:
    """Everything that is connected to a subtask, by walking the channels both ways."""
    neighbours: dict[Subtask, set[Subtask]] = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    found, to_visit = {subtask}, [subtask]
    while to_visit:
        new = neighbours.get(to_visit.pop(), set()) - found
        found |= new
        to_visit += new
    return frozenset(found)


def parts_of(graph: JobGraph) -> set[frozenset[Subtask]]:
    return {frozenset(region.subtasks) for region in failover_regions(graph)}


def total_of(graph: JobGraph) -> list[Subtask]:
    return [subtask for vertex in graph.vertices for subtask in subtasks_of(vertex)]


@given(graphs())
def test_every_subtask_is_in_exactly_one_region(graph: JobGraph) -> None:
    """None is forgotten, none would be restarted twice, and no region is empty."""
    regions = failover_regions(graph)
    placed = [subtask for region in regions for subtask in region.subtasks]
    assert len(placed) == len(set(placed))
    assert set(placed) == set(total_of(graph))
    assert all(region.subtasks for region in regions)


@given(graphs())
def test_two_subtasks_share_a_region_if_and_only_if_they_are_connected(graph: JobGraph) -> None:
    pairs = list(channels(graph))
    assert parts_of(graph) == {reached(subtask, pairs) for subtask in total_of(graph)}


@given(graphs("x"), graphs("y"))
def test_a_shuffle_in_one_part_leaves_the_others_regional(one: JobGraph, other: JobGraph) -> None:
    both = JobGraph(vertices=one.vertices + other.vertices, edges=one.edges + other.edges)
    assert parts_of(both) == parts_of(one) | parts_of(other)
    shuffled = replace(
        one, edges=tuple(replace(edge, distribution=Distribution.SHUFFLE) for edge in one.edges)
    )
    worse = JobGraph(vertices=one.vertices + other.vertices, edges=shuffled.edges + other.edges)
    assert parts_of(worse) == parts_of(shuffled) | parts_of(other)


@given(graphs())
def test_order_and_names_of_regions_are_stable(graph: JobGraph) -> None:
    """By their first subtasks; named after a source; the same however often it is asked, and the
    same again with a sink after every vertex."""
    regions = failover_regions(graph)
    names = [region.name for region in regions]
    assert len(set(names)) == len(names)
    order = total_of(graph)
    assert [region.subtasks[0] for region in regions] == sorted(
        (region.subtasks[0] for region in regions), key=order.index
    )
    sources = {v.vertex_id for v in graph.vertices} - {edge.downstream for edge in graph.edges}
    assert {region.subtasks[0].vertex_id for region in regions} <= sources
    assert failover_regions(graph) == regions
    sinks = [replace(v, vertex_id=f"{v.vertex_id}!", name="sink") for v in graph.vertices]
    to_sinks = [
        Edge(
            upstream=vertex.vertex_id, downstream=sink.vertex_id, distribution=Distribution.FORWARD
        )
        for vertex, sink in zip(graph.vertices, sinks, strict=True)
    ]
    grown = JobGraph(vertices=graph.vertices + tuple(sinks), edges=(*graph.edges, *to_sinks))
    assert [region.name for region in failover_regions(grown)] == names


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_rescale_has_the_most_regions_and_a_skew_of_one_channel_at_most(p: int, q: int) -> None:
    sent = rescale_channels(p, q)
    received = [sum(target in targets for targets in sent) for target in range(q)]
    for side in ([len(targets) for targets in sent], received):
        assert min(side) >= 1
        assert max(side) - min(side) <= 1
    assert len(sent) == p
    assert all(0 <= target < q for targets in sent for target in targets)
    assert len(parts_of(two_vertices(p, q, Distribution.RESCALE))) == min(p, q)


@pytest.mark.parametrize(
    ("p", "q"), [(p, q) for p in range(1, 7) for q in range(1, 7) if p * q <= 12]
)
def test_no_other_distribution_has_more_regions(p: int, q: int) -> None:
    """Against all graphs of p and q subtasks; without any skew the most is the gcd, and the default
    rescales where that is as much."""
    most = {0: 0, 1: 0}
    for chosen in range(1, 2 ** (p * q)):
        bits = [(chosen >> at) & 1 for at in range(p * q)]
        rows = [bits[at * q : (at + 1) * q] for at in range(p)]
        degrees = [[sum(row) for row in rows], [sum(column) for column in zip(*rows, strict=True)]]
        if min(map(min, degrees)) < 1:
            continue
        skew = max(max(side) - min(side) for side in degrees)
        if skew <= 1:
            count = components(rows)
            most = {allowed: max(m, count) if skew <= allowed else m for allowed, m in most.items()}
    assert most == {0: math.gcd(p, q), 1: min(p, q)}
    default = choose_distribution(p, q, where={})
    assert (default is not Distribution.REBALANCE) == (most[0] == most[1])


def components(rows: list[list[int]]) -> int:
    """Connected parts of a graph in which every row and column has a channel."""
    masks = [sum(bit << at for at, bit in enumerate(row)) for row in rows]
    parts: list[int] = []
    for mask in masks:
        touched = [part for part in parts if part & mask]
        parts = [part for part in parts if not part & mask]
        parts.append(mask | sum(touched))  # they are disjoint
    return len({*parts})


def two_vertices(p: int, q: int, distribution: Distribution) -> JobGraph:
    return JobGraph(
        vertices=(
            Vertex(vertex_id="p", name="p", kind="source", parallelism=p),
            Vertex(vertex_id="q", name="q", kind="sink", parallelism=q),
        ),
        edges=(Edge(upstream="p", downstream="q", distribution=distribution),),
    )


@settings(max_examples=examples(50))
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(JOINING))
def test_a_joining_edge_makes_one_region(p: int, q: int, distribution: Distribution) -> None:
    assert len(parts_of(two_vertices(p, q, distribution))) == 1


_TIMEOUT_S = 10.0
_NAMES = tuple("abcdefgh")
_seconds = st.floats(0.0, 20.0)


_OFTEN = 12
_KINDS = [*CheckpointKind, *[CheckpointKind.CHECKPOINT] * _OFTEN]
_STANDINGS = ["failed", "waiting", "starting", *["acknowledged"] * _OFTEN]


@st.composite
def _alignments(draw: st.DrawFn) -> Alignment:
    """Each region has acknowledged, failed, or neither, and then may be starting."""
    standing = {
        name: draw(st.sampled_from(_STANDINGS))
        for name in _NAMES[: draw(st.integers(1, len(_NAMES)))]
    }

    def those(*wanted: str) -> frozenset[str]:
        return frozenset(name for name, found in standing.items() if found in wanted)

    return Alignment(
        kind=draw(st.sampled_from(_KINDS)),
        acknowledged=those("acknowledged"),
        failed=those("failed"),
        waiting=those("waiting", "starting"),
        starting=those("starting"),
        skipped={name: draw(st.sampled_from([0, 0, 0, 1, 2, 6])) for name in standing},
        elapsed_s=draw(_seconds),
    )


_regional = st.builds(
    RegionalCheckpointHandler,
    max_failed_ratio=st.floats(0.05, 0.95) | st.floats(0.5, 0.95),
    max_skipped_in_a_row=st.integers(1, 5),
    region_timeout_s=st.none() | st.floats(0.1, 5.0) | st.floats(0.1, 20.0),
)
_handlers: st.SearchStrategy[CheckpointHandler] = st.one_of(
    st.builds(GlobalCheckpointHandler), _regional
)


@given(_handlers, _alignments())
def test_a_checkpoint_that_all_acknowledged_is_decided_by_both(
    handler: CheckpointHandler, found: Alignment
) -> None:
    everybody = found.acknowledged | found.failed | found.waiting
    whole = dataclasses.replace(
        found, acknowledged=everybody, failed=frozenset(), waiting=frozenset()
    )
    assert handler.rule(whole, timeout_s=_TIMEOUT_S) is HandlerDecision.DECIDE


@given(_alignments())
def test_the_global_handler_decides_for_all_or_for_none(found: Alignment) -> None:
    ruling = GlobalCheckpointHandler().rule(found, timeout_s=_TIMEOUT_S)
    assert (ruling is HandlerDecision.DECIDE) == (not found.failed and not found.waiting)


@settings(max_examples=examples(300))
@given(_regional, _alignments())
def test_nobody_is_skipped_beyond_a_limit(
    handler: RegionalCheckpointHandler, found: Alignment
) -> None:
    if handler.rule(found, timeout_s=_TIMEOUT_S) is not HandlerDecision.DECIDE:
        return
    left_out = found.failed | found.waiting
    if not left_out:
        return
    everybody = found.acknowledged | left_out
    assert found.kind is CheckpointKind.CHECKPOINT
    assert len(left_out) <= handler.max_failed_ratio * len(everybody)
    assert all(found.skipped[name] < handler.max_skipped_in_a_row for name in left_out)
    if found.waiting - found.starting:
        assert handler.region_timeout_s is not None
        assert found.elapsed_s >= handler.region_timeout_s
    assert set(found.left_out()) == left_out


@given(_regional, _alignments())
def test_within_the_limits_no_failure_gives_a_checkpoint_up(
    handler: RegionalCheckpointHandler, found: Alignment
) -> None:
    is_within = (
        found.kind is CheckpointKind.CHECKPOINT
        and len(found.failed | found.waiting)
        <= handler.max_failed_ratio * len(found.acknowledged | found.failed | found.waiting)
        and all(
            found.skipped[name] < handler.max_skipped_in_a_row
            for name in found.failed | found.waiting
        )
    )
    if is_within and found.elapsed_s < _TIMEOUT_S:
        assert handler.rule(found, timeout_s=_TIMEOUT_S) is not HandlerDecision.GIVE_UP


@given(_handlers, _alignments())
def test_no_checkpoint_waits_beyond_its_timeout(
    handler: CheckpointHandler, found: Alignment
) -> None:
    """It is decided or given up, so that its ranges are read again."""
    late = dataclasses.replace(found, elapsed_s=_TIMEOUT_S)
    assert handler.rule(late, timeout_s=_TIMEOUT_S) is not HandlerDecision.WAIT


@given(_handlers, _alignments(), _seconds)
def test_time_alone_changes_a_ruling_at_a_deadline_only(
    handler: CheckpointHandler, found: Alignment, later_s: float
) -> None:
    first_s, last_s = sorted((found.elapsed_s, later_s))
    rulings = [
        handler.rule(dataclasses.replace(found, elapsed_s=at_s), timeout_s=_TIMEOUT_S)
        for at_s in (first_s, last_s)
    ]
    deadlines = handler.deadlines_s(timeout_s=_TIMEOUT_S)
    if not any(first_s < deadline_s <= last_s for deadline_s in deadlines):
        assert rulings[0] is rulings[1]


@settings(max_examples=examples(300))
@given(_handlers, _alignments(), st.data())
def test_an_acknowledgement_never_makes_a_ruling_worse(
    handler: CheckpointHandler, found: Alignment, data: st.DataObject
) -> None:
    if not found.waiting:
        return
    name = data.draw(st.sampled_from(sorted(found.waiting)))
    after = dataclasses.replace(
        found,
        acknowledged=found.acknowledged | {name},
        waiting=found.waiting - {name},
        starting=found.starting - {name},
    )
    if handler.rule(found, timeout_s=_TIMEOUT_S) is HandlerDecision.DECIDE:
        assert handler.rule(after, timeout_s=_TIMEOUT_S) is HandlerDecision.DECIDE


seconds = st.floats(0.0, 500.0, allow_nan=False)
gaps = st.lists(st.tuples(seconds, st.floats(0.0, 1.0, exclude_max=True)), max_size=30)


def run(
    strategy: RestartStrategy, gaps_between: list[tuple[float, float]]
) -> tuple[list[float], list[Restarts]]:
    """A region that gaps_between so long after each restart; when it failed, and what followed. One
    failure more than restarts: the region was given up."""
    past, now_s = Restarts(), 0.0
    failures_s, restarts = list[float](), list[Restarts]()
    for lived_s, draw in gaps_between:
        now_s = (past.due_s or now_s) + lived_s
        failures_s.append(now_s)
        after = strategy.after_failure(past, now_s, draw=draw)
        if after is None:
            break
        assert after.due_s is not None
        assert after.due_s >= now_s
        restarts.append(after)
        past = after
    return failures_s, restarts


@given(gaps_between=gaps, attempts=st.integers(0, 5), delay_s=seconds)
def test_fixed_delay_restarts_so_often_and_no_more(
    gaps_between: list[tuple[float, float]], attempts: int, delay_s: float
) -> None:
    """The first so many failures are followed by a restart, after the delay."""
    failures_s, restarts = run(FixedDelayRestart(attempts=attempts, delay_s=delay_s), gaps_between)
    assert len(restarts) == min(len(gaps_between), attempts)
    for at_s, restart in zip(failures_s, restarts, strict=False):
        assert restart.due_s == at_s + delay_s


@given(
    gaps_between=gaps,
    initial_s=st.floats(0.1, 10.0),
    multiplier=st.floats(1.0, 4.0),
    jitter=st.floats(0.0, 1.0),
    reset_s=st.floats(1.0, 400.0),
    limit=st.none() | st.integers(1, 4),
)
def test_exponential_delay_grows_within_its_bounds(
    gaps_between: list[tuple[float, float]],
    initial_s: float,
    multiplier: float,
    jitter: float,
    reset_s: float,
    limit: int | None,
) -> None:
    """Each delay is its backoff, more or less by the jitter, at most the longest; the backoff
    grows, or begins again after the threshold; only the limit in a row ends it."""
    strategy = ExponentialDelayRestart(
        initial_backoff_s=initial_s,
        max_backoff_s=30.0,
        backoff_multiplier=multiplier,
        jitter_factor=jitter,
        reset_backoff_threshold_s=reset_s,
        attempts_before_reset_backoff=limit,
    )
    failures_s, restarts = run(strategy, gaps_between)
    in_a_row, backoff_s, due_s = 0, 0.0, float("-inf")
    for number, at_s in enumerate(failures_s):
        is_first = at_s - due_s >= reset_s
        in_a_row = 1 if is_first else in_a_row + 1
        backoff_s = initial_s if is_first else min(backoff_s * multiplier, 30.0)
        if number == len(restarts):
            assert limit is not None
            assert in_a_row == limit + 1
            return
        assert limit is None or in_a_row <= limit
        due_s = restarts[number].due_s or 0.0
        least_s = min(backoff_s * (1 - jitter), 30.0)
        most_s = min(backoff_s * (1 + jitter), 30.0)
        assert least_s - 1e-6 <= due_s - at_s <= most_s + 1e-6


@given(gaps_between=gaps, most=st.integers(1, 5), interval_s=st.floats(1.0, 400.0), delay_s=seconds)
def test_failure_rate_gives_up_at_the_first_interval_with_too_many(
    gaps_between: list[tuple[float, float]], most: int, interval_s: float, delay_s: float
) -> None:
    """And at no other moment: counted again for each failure, over the whole history."""
    strategy = FailureRateRestart(
        max_failures_per_interval=most, failure_rate_interval_s=interval_s, delay_s=delay_s
    )
    failures_s, restarts = run(strategy, gaps_between)
    for number, at_s in enumerate(failures_s):
        in_interval = sum(at_s - interval_s <= before_s for before_s in failures_s[: number + 1])
        assert (in_interval > most) == (number == len(restarts))


INTERVAL_S = 1.0


class Consumer:
    """Writes so many records per second, and needs some time for an epoch without any."""

    def __init__(self, rate: RateEstimator, *, speed: float, fixed_s: float) -> None:
        self.rate, self.speed, self.fixed_s = rate, speed, fixed_s
        self.now_s = 0.0

    def epochs(self, number: int, *, backlog: int = 10**9, outage_s: float = 0.0) -> None:
        """Each begins when it is due, or when the one before has ended."""
        for _ in range(number):
            most = self.rate.most_records
            records = backlog if most is None else min(backlog, most)
            took_s = self.fixed_s + records / self.speed + outage_s
            self.rate.cut(records, splits=1, now_s=self.now_s)
            self.rate.finished(self.now_s + took_s)
            self.now_s += max(took_s, INTERVAL_S)

    @property
    def capacity(self) -> float:
        """Records per second with which an epoch takes just the interval."""
        return self.speed * (1 - self.fixed_s / INTERVAL_S)


speeds = st.floats(1_000, 1_000_000)
fixed = st.floats(0.0, 0.6)
starts = st.one_of(st.none(), st.floats(1, 10_000_000))


@given(speeds, fixed, starts)
def test_the_rate_settles_at_what_the_consumer_can_do(
    speed: float, fixed_s: float, initial: float | None
) -> None:
    rate = RateEstimator(PidRateLimit(initial_rate=initial), INTERVAL_S)
    consumer = Consumer(rate, speed=speed, fixed_s=fixed_s)
    consumer.epochs(60)
    assert rate.rate is not None
    assert 0.95 * consumer.capacity <= rate.rate <= 1.05 * consumer.capacity + 100


@given(speeds, fixed, st.floats(10, 3_600))
def test_an_outage_is_over_when_it_is_over(speed: float, fixed_s: float, outage_s: float) -> None:
    """No time that it took is made up for: the rate comes back, and not above what it was."""
    rate = RateEstimator(PidRateLimit(), INTERVAL_S)
    consumer = Consumer(rate, speed=speed, fixed_s=fixed_s)
    consumer.epochs(60)
    consumer.epochs(1, outage_s=outage_s)
    for _ in range(60):
        consumer.epochs(1)
        assert rate.rate is not None
        assert rate.rate <= 1.6 * consumer.capacity + 100
    assert rate.rate is not None
    assert rate.rate >= 0.9 * consumer.capacity


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.floats(0, 10_000), st.integers(1, 64), st.booleans()),
        max_size=50,
    ),
    st.floats(0, 3),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 10_000),
)
def test_a_region_is_never_starved_whatever_happens(
    epochs: list[tuple[int, float, int, bool]],
    proportional: float,
    integral: float,
    derived: float,
    min_rate: float,
) -> None:
    settings = PidRateLimit(
        proportional=proportional, integral=integral, derived=derived, min_rate=min_rate
    )
    rate = RateEstimator(settings, INTERVAL_S)
    now_s = 0.0
    for records, took_s, splits, ends in epochs:
        rate.cut(records, splits=splits, now_s=now_s)
        now_s += took_s
        if ends:
            rate.finished(now_s)
        else:
            rate.given_up()
        assert rate.rate is None or rate.rate >= min_rate
        assert rate.most_records is None or rate.most_records >= 1
