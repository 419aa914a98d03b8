"""What keeps a start from an answer, so that it asks again until the obstacle is gone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from tests.chaos.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Of a program that writes local files.

    Attributes:
        killed_at: where the run before has to be killed.
        in_the_way: for the starts after it.
    """

    killed_at: str
    in_the_way: Callable[[Scenario], AbstractContextManager[None]]


@contextmanager
def _blocked_place(scenario: Scenario) -> Iterator[None]:
    newest = max(open_store(str(scenario.checkpoint)).slots())
    blocked = scenario.checkpoint / slot_name(newest + 1)
    blocked.touch()
    try:
        yield
    finally:
        blocked.unlink()


@contextmanager
def _missing_files(scenario: Scenario) -> Iterator[None]:
    """A decided file is neither staged nor published."""
    root = Path(scenario.topics.files.fs.uri.removeprefix("file://"))
    staged = [path for path in root.glob(".sluice-staging-*/**/*.staged") if path.is_file()]
    assert staged, "no file waits to be published"
    away = {path: path.rename(path.with_name(f"{path.name}.away")) for path in staged}
    try:
        yield
    finally:
        for path, elsewhere in away.items():
            elsewhere.rename(path)


OBSTACLES: Mapping[str, Obstacle] = {
    "publish-retry": Obstacle(killed_at="after-mark", in_the_way=_blocked_place),
    "settle-retry": Obstacle(killed_at="before-rename", in_the_way=_missing_files),
}
"""By the failpoint that a start reaches again and again meanwhile."""
