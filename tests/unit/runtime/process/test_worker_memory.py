"""A worker keeps little memory: modules are frozen once, free buffers return."""

import gc
import os
from collections.abc import Iterator

import psutil
import pytest

from sluice.runtime.process import worker_memory
from sluice.runtime.process.gc_control import without_collector
from sluice.runtime.process.worker_memory import freeze_lasting, tidy_after_task


class Ring:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "_frozen_in", None)
    before = gc.get_freeze_count()
    yield
    if not before:
        gc.unfreeze()


def tracked() -> int:
    return sum(gc.get_count()) + len(gc.get_objects())


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_after_a_block_without_it_what_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with without_collector():
            with without_collector():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_what_is_there_is_left_out_and_what_comes_is_still_found() -> None:
    before = tracked()
    freeze_lasting()
    assert tracked() < before / 10
    Ring()
    assert gc.collect() >= 1


def test_cycles_are_found_before_they_would_be_kept() -> None:
    gc.collect()
    Ring()
    freeze_lasting()
    assert not [each for each in gc.get_referrers(Ring) if isinstance(each, Ring)]


def test_it_is_done_once_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is forked from a daemon: what that had frozen is not all that the worker has."""
    done: list[int] = []
    monkeypatch.setattr(worker_memory, "freeze_lasting", lambda: done.append(1))
    tidy_after_task()
    tidy_after_task()
    assert len(done) == 1
    other = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: other)
    tidy_after_task()
    assert len(done) == 2


def test_free_memory_returns_to_the_system() -> None:
    def resident() -> int:
        return psutil.Process().memory_info().rss

    kept = [bytes(1_000) for _ in range(100_000)]
    full = resident()
    last = kept[-1:]  # the heap's end stays in use, so that only a trim returns what lies before it
    del kept
    tidy_after_task()
    assert last
    assert resident() < full - 50_000_000
