"""What the faults of the chaos bed ask of what they have struck, without an engine."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.environment.containers import Container, ContainerSpec
from tests.environment.faults import make_fault
from tests.environment.pipeline import BedFailureError
from tests.environment.plan import PlannedFault

_NOBODY = 1 << 30
"""No process has this number: what has it has ended."""


class EngineAtADeath:
    """Its containers have ended, and it has silent that: it says so to those who wait."""

    def __init__(self, *, exit_code: int) -> None:
        self._exit_code = exit_code

    def address(self, number: int) -> str:
        return f"10.0.0.{number}"

    def run(self, *words: str, check: bool = True) -> str:
        match words[0]:
            case "wait":
                return str(self._exit_code)
            case "inspect":
                return str(_NOBODY) if "{{.State.Pid}}" in words else "0"
            case _:
                return "done"


@dataclass(kw_only=True)
class Drivers:
    """As much of a `tests.environment.pipeline.Pipeline` as a zombie needs."""

    bed: Any
    active: str = "driver-1"
    standby: str = "driver-2"
    restarts: list[str] = field(default_factory=list)

    @property
    def driver(self) -> Container:
        made: Container = self.bed.containers[self.active]
        return made

    def await_progress(self, *, timeout_s: float, what: str) -> None:
        """There is some at once."""

    def wait(self, done: Any, *, timeout_s: float, what: str) -> None:
        assert done(), what

    def story(self) -> str:
        return ""


def container(name: str, *, exit_code: int) -> Container:
    """It has been started, and has ended."""
    engine: Any = EngineAtADeath(exit_code=exit_code)
    made = Container(engine, ContainerSpec(name=name, image="none", number=1), name)
    made.start()
    return made


def test_an_exit_code_is_what_the_engine_says_of_the_end() -> None:
    """Not of the moment before, in which it takes the container for a running one."""
    assert container("any", exit_code=7).exit_code == 7


def zombie(*, exit_code: int) -> Drivers:
    """The first driver ends so when it continues after the second one's progress."""
    names = ("driver-1", "driver-2")
    containers = {name: container(name, exit_code=exit_code) for name in names}
    drivers: Any = Drivers(bed=SimpleNamespace(containers=containers))
    planned = PlannedFault(kind="zombie", target="driver", after_s=0, hold_s=1, draw=0)
    fault = make_fault(drivers, planned)
    fault.inject()
    fault.heal()
    made: Drivers = drivers
    return made


def test_a_zombie_ends_with_an_error() -> None:
    """The second driver is in charge by then."""
    drivers = zombie(exit_code=1)
    assert drivers.restarts == ["driver-1, fenced, ended with 1"]
    assert drivers.active == "driver-2"


@pytest.mark.parametrize("exit_code", [0, 128 + 9])
def test_a_zombie_that_ends_otherwise_fails_the_round(exit_code: int) -> None:
    """As if nothing had been wrong; or not by itself."""
    with pytest.raises(BedFailureError, match=f"driver-1, fenced, ended with {exit_code}"):
        zombie(exit_code=exit_code)
