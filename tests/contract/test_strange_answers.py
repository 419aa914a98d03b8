"""A server that is not the store answers one look of a start: decided work is never given up."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.runtime.errors import StreamError, UnreachableError
from sluice.runtime.spark.drop_in import drop_in_run
from tests.kit.objects.s3_fixture import ProxiedBucket
from tests.kit.objects.s3_proxy import Fault, FaultKind, S3Request
from tests.unit.runtime.spark.drop_in.test_frame_writes import (
    Frame,
    Frames,
    lose_the_brokers_after_the_decision,
)


class _Settings(dict[str, str]):
    """Of a Spark session."""

    def getAll(self) -> list[tuple[str, str]]:
        return list(self.items())


def _nth(number: int) -> tuple[Callable[[S3Request], Fault | None], list[S3Request]]:
    """Chooses one request that reads a record or a marker; and what has come so far."""
    seen: list[S3Request] = []  # each once, though the client repeats it

    def choose(request: S3Request) -> Fault | None:
        if request.method not in ("GET", "HEAD") or not request.key:  # a listing
            return None
        if not seen or seen[-1] != request:
            seen.append(request)
        return Fault(kind=FaultKind.STRANGE) if len(seen) == number else None

    return choose, seen


@pytest.mark.extended
@pytest.mark.parametrize("brokers", ["there", "away"])
def test_outcome_from_broker_no_404_of_a_proxy_gives_decided_work_up(
    s3_proxied: ProxiedBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: str
) -> None:
    """Each look of a start in turn. The brokers were away at the decision, and come back for the
    start, or after it."""
    for name, value in s3_proxied.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(drop_in_run, "_START_TIMEOUT_S", 1.0)
    number, is_over = 0, False
    # A start that waits for brokers looks again and again.
    step, last = (1, 1_000) if brokers == "there" else (3, 20)
    while not is_over and number + step <= last:
        number += step
        (tmp_path / str(number)).mkdir()
        with monkeypatch.context() as patch:
            world = Frames(tmp_path / str(number), patch)
            world.session.conf = _Settings()
            world.location = f"{s3_proxied.uri}/writes-{number}"
            try:
                is_over = _continued(world, s3_proxied, number, brokers=brokers)
            finally:
                world.close()
    assert is_over is (brokers == "there")


def _continued(world: Frames, bucket: ProxiedBucket, number: int, *, brokers: str) -> bool:
    """Whether the start has looked fewer times than ``number``."""
    frame = Frame(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_in_run, "_COMMIT_TIMEOUT_S", 0.3)
        lose_the_brokers_after_the_decision(world, patch)
        with pytest.raises(UnreachableError, match="it may be decided"):
            world.save(frame, 3)
    choose, seen = _nth(number)
    world.reachable = brokers == "there"
    bucket.proxy.choose = choose
    with pytest.MonkeyPatch.context() as patch:
        try:
            world.save(frame, 3)
        except StreamError:
            assert len(seen) >= number or brokers == "away"
    bucket.proxy.choose = None
    world.reachable = True
    world.save(frame, 3)
    assert world.visible() == [7], f"after look {number}: {seen[number - 1 : number]}"
    return len(seen) < number
