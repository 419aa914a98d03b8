"""Load balancing by backlog, for any regions, splits and speeds."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.balance import Choice, LoadBalancer, RegionLoad
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitKey

_NAMES = ("a", "b", "c", "d")


def _key(number: int) -> SplitKey:
    return ("source", "orders", number)


def _loads(
    places: Mapping[SplitKey, str],
    records: Mapping[SplitKey, int],
    speeds: Mapping[str, float | None],
) -> dict[str, RegionLoad]:
    return {
        name: RegionLoad(
            records={key: records[key] for key, place in places.items() if place == name},
            records_per_s=speed,
        )
        for name, speed in speeds.items()
    }


def _seconds(load: RegionLoad, otherwise_per_s: float) -> float:
    return sum(load.records.values()) / (load.records_per_s or otherwise_per_s)


@st.composite
def _jobs(
    draw: st.DrawFn,
) -> tuple[dict[SplitKey, str], dict[SplitKey, int], dict[str, float | None]]:
    names = _NAMES[: draw(st.integers(2, len(_NAMES)))]
    keys = [_key(number) for number in range(draw(st.integers(0, 12)))]
    return (
        {key: draw(st.sampled_from(names)) for key in keys},
        {key: draw(st.integers(0, 10_000)) for key in keys},
        {name: draw(st.none() | st.floats(1.0, 1_000.0)) for name in names},
    )


_balancers = st.builds(
    LoadBalancer,
    ratio=st.floats(1.1, 4.0),
    least_s=st.floats(0.1, 60.0),
    patience=st.integers(1, 4),
    max_moves=st.integers(1, 3),
)


@given(_jobs(), _balancers)
def test_moves_end_and_no_assignment_comes_twice_under_constant_speeds(
    job: tuple[dict[SplitKey, str], dict[SplitKey, int], dict[str, float | None]],
    balancer: LoadBalancer,
) -> None:
    """Nothing plays ping-pong: each checkpoint moves at most ``max_moves``, only splits that are
    there, never the last one of a region; and then all is quiet."""
    places, records, speeds = job
    seen = [dict(places)]
    choice = Choice()
    quiet = 0
    while quiet <= balancer.patience:
        choice = balancer.choose(_loads(places, records, speeds), choice.overloaded)
        assert len(choice.moves) <= balancer.max_moves
        for move in choice.moves:
            assert places[move.split] == move.source_region != move.target_region
            assert move.target_region in speeds
            assert list(places.values()).count(move.source_region) > 1
            places[move.split] = move.target_region
            assert places not in seen
            seen.append(dict(places))
        quiet = 0 if choice.moves else quiet + 1
        assert len(seen) < 1_000


@given(_jobs(), _balancers)
def test_a_move_makes_the_larger_load_of_its_regions_smaller(
    job: tuple[dict[SplitKey, str], dict[SplitKey, int], dict[str, float | None]],
    balancer: LoadBalancer,
) -> None:
    places, records, speeds = job
    known = [speed for speed in speeds.values() if speed]
    before = _loads(places, records, speeds)
    patient = dict.fromkeys(speeds, balancer.patience)
    for move in balancer.choose(before, patient).moves[:1]:
        after = _loads({**places, move.split: move.target_region}, records, speeds)
        larger = max(
            _seconds(after[name], max(known)) for name in (move.source_region, move.target_region)
        )
        assert larger < _seconds(before[move.source_region], max(known))


def _slow(*, records: int = 1_000) -> dict[str, RegionLoad]:
    keys = [_key(number) for number in range(4)]
    return _loads(
        {key: "a" if at < 2 else "b" for at, key in enumerate(keys)},
        dict.fromkeys(keys, records),
        {"a": 25.0, "b": 100.0},
    )


def test_a_region_is_relieved_after_as_many_checkpoints_as_patience_says() -> None:
    balancer = LoadBalancer(patience=3)
    choice = Choice()
    moves = []
    for _ in range(6):
        choice = balancer.choose(_slow(), choice.overloaded)
        moves.append(len(choice.moves))
    assert moves == [0, 0, 1, 0, 0, 1]


def test_no_more_splits_move_at_a_time_than_it_was_reported() -> None:
    keys = [_key(number) for number in range(6)]
    places = dict(zip(keys, "aabbcd", strict=True))
    records = dict(zip(keys, (3_000, 3_000, 2_000, 2_000, 0, 0), strict=True))
    loads = _loads(places, records, dict.fromkeys(_NAMES, 100.0))
    first = LoadBalancer(patience=1, max_moves=1).choose(loads, {})
    assert [move.source_region for move in first.moves] == ["a"]
    assert len(LoadBalancer(patience=1, max_moves=2).choose(loads, {}).moves) == 2


def test_a_region_that_has_waited_is_relieved_though_a_more_loaded_one_has_not() -> None:
    keys = [_key(number) for number in range(5)]
    places = dict(zip(keys, "aabbc", strict=True))
    records = dict(zip(keys, (3_000, 3_000, 2_000, 2_000, 0), strict=True))
    loads = _loads(places, records, dict.fromkeys(("a", "b", "c"), 100.0))
    choice = LoadBalancer(patience=2).choose(loads, {"b": 1})
    assert [move.source_region for move in choice.moves] == ["b"]
    assert choice.overloaded == {"a": 1, "b": 0}


def test_a_split_that_moves_counts_where_it_goes_and_nowhere_else() -> None:
    keys = [_key(number) for number in range(5)]
    places = dict(zip(keys, "aabbc", strict=True))
    records = dict(zip(keys, (3_000, 3_000, 4_000, 1_500, 0), strict=True))
    loads = _loads(places, records, {"a": 100.0, "b": 100.0, "c": 90.0})
    choice = LoadBalancer(patience=1, max_moves=2).choose(loads, {})
    assert [(move.source_region, move.target_region) for move in choice.moves] == [
        ("a", "c"),
        ("b", "a"),
    ]


def test_an_overload_that_passes_is_forgotten() -> None:
    """One even checkpoint in between, and the count begins again."""
    balancer = LoadBalancer(patience=2)
    choice = balancer.choose(_slow(), {})
    choice = balancer.choose(_slow(records=1), choice.overloaded)
    assert balancer.choose(_slow(), choice.overloaded).moves == ()


def test_small_loads_and_unknown_speeds_move_nothing() -> None:
    """Most of a small epoch's time is Spark's own: it says nothing about speed."""
    balancer = LoadBalancer(patience=1)
    assert balancer.choose(_slow(), {}).moves
    assert not balancer.choose(_slow(records=30), {}).moves
    unknown = {
        name: RegionLoad(records=load.records, records_per_s=None) for name, load in _slow().items()
    }
    assert balancer.choose(unknown, {}) == Choice()


@pytest.mark.parametrize(
    "wrong", [{"ratio": 1.0}, {"least_s": 0.0}, {"patience": 0}, {"max_moves": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="load balancing"):
        LoadBalancer(**wrong)  # type: ignore[arg-type]
