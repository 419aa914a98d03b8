"""The verdict on counts per key: each record counted once, and the rate without the first batch."""

from benchmarks.peers.verdict import judge_counts, judge_tenths, judge_windows


def test_increments_after_the_first_count_make_the_rate() -> None:
    rows = [(1_000, "a", 10), (1_100, "b", 10), (2_000, "a", 40), (3_000, "b", 60)]
    verdict = judge_counts(rows, 100)
    assert (verdict.found, verdict.faults, verdict.at_first) == (100, 0, 20)
    assert verdict.rate == 40
    assert verdict.middle_ms == 2_000


def test_lost_repeated_and_falling_counts_are_faults() -> None:
    assert judge_counts([(1, "a", 10)], 12).lost == 2
    assert judge_counts([(1, "a", 10), (2, "a", 10)], 10).duplicated == 1
    assert judge_counts([(1, "a", 12)], 10).duplicated == 2
    assert judge_counts([(1, "a", 10), (2, "a", 4)], 4).reordered == 1
    assert judge_counts([], 3).lost == 3


def test_the_rate_of_windows_begins_with_the_end_of_the_first_one() -> None:
    rows = [(1_000, b"0|a", 5), (1_100, b"0|b", 5), (2_100, b"10|a", 8), (2_000, b"10|b", 2)]
    verdict = judge_windows(rows, 20)
    assert (verdict.found, verdict.faults, verdict.at_first) == (20, 0, 10)
    assert verdict.rate == 10


def test_a_window_that_comes_twice_or_not_at_all_is_a_fault() -> None:
    assert judge_windows([(1, b"0|a", 5), (2, b"0|a", 5)], 10).duplicated == 1
    assert judge_windows([(1, b"0|a", 5)], 10).lost == 5
    assert judge_windows([], 3).lost == 3


def test_each_tenth_count_of_a_key_comes_once() -> None:
    rows = [(1_000, b"00", 10), (1_000, b"13", 7), (2_000, b"13", 17), (3_000, b"00", 20)]
    verdict = judge_tenths(rows, 40)
    assert (verdict.found, verdict.faults, verdict.at_first) == (40, 0, 20)
    assert verdict.rate == 10
    assert judge_tenths(rows[:3], 40).lost == 10
    assert judge_tenths([*rows, rows[0]], 40).duplicated == 10
    assert judge_tenths([*rows, (4_000, b"13", 10)], 40).unexpected == 10
    assert judge_tenths([], 40).lost == 40
