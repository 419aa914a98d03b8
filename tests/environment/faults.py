"""The kinds of faults: how the bed injects and heals each of them."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.chaos.beds import AT_START, CHAINS, ELSEWHERE
from tests.environment.containers import Container
from tests.environment.host import Link
from tests.environment.pipeline import BedFailureError, Pipeline
from tests.environment.plan import BROKERS, COORDINATORS, LEADER, ZOOKEEPERS, PlannedFault

RECOVERY_S = 600.0
"""The longest recovery, on a machine with other work."""

_JUMP_S = 600
_NARROW_KBIT = 128
_STOP_S = 60
_BY_SIGNAL = 128
_REACHED_S = 180.0
_PARTS = {"executor": "CoarseGrainedExecutorBackend", "python": "daemon"}
_FIRST_ONLY = frozenset({"before-first", "after-first"})
_FILE_STEPS = ("before-rename", "mid-rename", "after-rename")
_STEPS = tuple(
    step for chain in CHAINS.values() for step in chain if step not in ELSEWHERE | _FIRST_ONLY
)
_DECIDED_STEPS = ("after-publish", "after-decision", "before-commit", "mid-commit")
_LEADER_START = (
    *("before-lease", "after-lease", "before-fencing", "after-fencing"),
    *("before-attempts-listed", "after-attempts-listed", "before-sweep", "after-sweep"),
)
_LEADER_STEPS = (
    *_LEADER_START,
    *("before-cut", "after-cut", "before-decision", "before-publish", "after-publish"),
    *("after-decision", "before-commit", "after-tasks-asked", "after-tasks-answered"),
    *("after-commit", "before-mark", "before-committed-mark", "after-committed-mark", "after-mark"),
)
_FROZEN_SHARE = 1 / 3
_MOST_HITS = 3
_ALONE_S = 1.0  # a second of the feeder's records

Step = Callable[[], None]


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault, ready to be injected, held, and healed.

    Attributes:
        inject, heal: called in this order, once each. The target may be gone at healing.
        name: of the target: a container, or a part of one.
        struck: False: the target did not exist, so the fault does not count.
    """

    inject: Step
    heal: Step
    name: str
    struck: bool = True


def make_fault(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    """The planned fault, for the present state of the pipeline."""
    return _MAKERS[planned.kind](pipeline, planned)


def _nothing() -> None:
    pass


def _target(pipeline: Pipeline, planned: PlannedFault) -> Container:
    return pipeline.bed.containers[pipeline.resolve(planned.target)]


def _kill(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    target = _target(pipeline, planned)
    return _down(pipeline, target, target.kill)


def _outage(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    target = _target(pipeline, planned)

    def stop() -> None:
        target.stop(timeout_s=_STOP_S)

    return _down(pipeline, target, stop)


def _down(pipeline: Pipeline, target: Container, end: Step) -> Fault:
    def inject() -> None:
        pipeline.expected_down.add(target.name)
        end()

    def heal() -> None:
        target.start()
        pipeline.expected_down.discard(target.name)

    return Fault(inject=inject, heal=heal, name=target.name)


def _kill_part(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    name, _, part = planned.target.partition("/")
    container = pipeline.bed.containers[name]
    fault = Fault(inject=_nothing, heal=_nothing, name=planned.target)

    def inject() -> None:
        found = [pid for pid, command in container.processes() if _PARTS[part] in command]
        fault.struck = bool(found)
        for pid in found:
            # The death of one process of the list may have ended another one.
            if os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
                os.kill(pid, signal.SIGKILL)

    fault.inject = inject
    return fault


def _pause(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    target = _target(pipeline, planned)
    return Fault(inject=target.pause, heal=target.resume, name=target.name)


def _zombie(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    """A second driver takes over and commits while the first one is frozen. Then the first one
    must end with an error."""
    first, second = pipeline.driver, pipeline.bed.containers[pipeline.standby]
    name = first.name

    def inject() -> None:
        first.pause()
        pipeline.active = second.name
        second.start()
        pipeline.await_progress(timeout_s=RECOVERY_S, what="progress of the second driver")

    def heal() -> None:
        first.resume()
        pipeline.wait(
            lambda: not first.runs, timeout_s=RECOVERY_S, what=f"{name}, fenced, to end by itself"
        )
        code = first.exit_code
        if not 0 < code < _BY_SIGNAL:
            raise BedFailureError(f"{name}, fenced, ended with {code}\n{pipeline.story()}")
        pipeline.restarts.append(f"{name}, fenced, ended with {code}")

    return Fault(inject=inject, heal=heal, name=name)


def _step_of(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    return (_leader_failpoint if planned.target == LEADER else _failpoint)(pipeline, planned)


def _failpoint(
    pipeline: Pipeline, planned: PlannedFault, *, steps: Sequence[str] = _STEPS
) -> Fault:
    """The bed restarts the driver, which then kills itself at a step."""
    driver = pipeline.driver
    names = [*steps, *(_FILE_STEPS if pipeline.shape.writes_files else ())]
    choice = int(planned.draw * len(names) * _MOST_HITS)
    step = names[choice // _MOST_HITS]
    hit = 1 if step in AT_START else 1 + choice % _MOST_HITS
    fault = Fault(inject=_nothing, heal=_nothing, name=f"driver at {step}@{hit}")
    armed = pipeline.bed.directory / f"{driver.name}.failpoints"

    def inject() -> None:
        pipeline.expected_down.add(driver.name)
        driver.kill()
        armed.write_text(f"{step}=kill@{hit}", encoding="utf-8")
        driver.start()
        fault.struck = pipeline.wait(
            lambda: not driver.runs, timeout_s=_REACHED_S, what=step, required=False
        )

    def heal() -> None:
        armed.unlink(missing_ok=True)
        if fault.struck:
            code = driver.exit_code
            if code != _BY_SIGNAL + signal.SIGKILL:
                raise BedFailureError(f"{code} instead of a kill at {step}\n{pipeline.story()}")
            driver.start()
        pipeline.expected_down.discard(driver.name)

    fault.inject, fault.heal = inject, heal
    return fault


def _leader_failpoint(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    """The leader is killed, and the coordinator that takes over kills itself at a step."""
    leader = _target(pipeline, planned)
    heir = _other(pipeline, leader)
    choice = int(planned.draw * len(_LEADER_STEPS) * _MOST_HITS)
    step = _LEADER_STEPS[choice // _MOST_HITS]
    hit = 1 if step in _LEADER_START else 1 + choice % _MOST_HITS
    fault = Fault(inject=_nothing, heal=_nothing, name=f"{heir.name} at {step}@{hit}")
    armed = pipeline.bed.directory / f"{heir.name}.failpoints"
    names = {leader.name, heir.name}

    def inject() -> None:
        pipeline.expected_down.update(names)
        heir.kill()
        armed.write_text(f"{step}=kill@{hit}", encoding="utf-8")
        heir.start()
        leader.kill()
        fault.struck = pipeline.wait(
            lambda: not heir.runs, timeout_s=_REACHED_S, what=step, required=False
        )

    def heal() -> None:
        armed.unlink(missing_ok=True)
        leader.start()
        if fault.struck:
            code = heir.exit_code
            if code != _BY_SIGNAL + signal.SIGKILL:
                raise BedFailureError(f"{code} instead of a kill at {step}\n{pipeline.story()}")
            heir.start()
        pipeline.expected_down.difference_update(names)

    fault.inject, fault.heal = inject, heal
    return fault


def _other(pipeline: Pipeline, coordinator: Container) -> Container:
    (name,) = set(COORDINATORS) - {coordinator.name}
    return pipeline.bed.containers[name]


def _depose(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    """The leader is frozen until the other coordinator has committed, and then that one.

    The first one continues before or after the second one is frozen, finds that it leads no more,
    ends, is started again, and takes over.
    """
    first = _target(pipeline, planned)
    second = _other(pipeline, first)
    is_late = planned.draw < 0.5

    def lead(coordinator: Container) -> None:
        pipeline.wait(
            lambda: pipeline.resolve(LEADER) == coordinator.name,
            timeout_s=RECOVERY_S,
            what=f"{coordinator.name} to lead",
        )

    def inject() -> None:
        first.pause()
        lead(second)
        if is_late:
            second.pause()
        _end_deposed(pipeline, first)
        if not is_late:
            second.pause()
        lead(first)

    def heal() -> None:
        _end_deposed(pipeline, second)

    when = "while its successor is frozen" if is_late else "before its successor is frozen"
    return Fault(inject=inject, heal=heal, name=f"{first.name}, resumed {when}")


def _end_deposed(pipeline: Pipeline, coordinator: Container) -> None:
    """Resume a former leader: it must end by itself with an error. Then start it again."""
    name = coordinator.name
    pipeline.expected_down.add(name)
    coordinator.resume()
    pipeline.wait(
        lambda: not coordinator.runs, timeout_s=RECOVERY_S, what=f"{name}, deposed, to end"
    )
    code = coordinator.exit_code
    if not 0 < code < _BY_SIGNAL:
        raise BedFailureError(f"{name}, deposed, ended with {code}\n{pipeline.story()}")
    pipeline.restarts.append(f"{name}, deposed, ended with {code}, started again")
    coordinator.start()
    pipeline.expected_down.discard(name)


def _no_quorum(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    """All ZooKeeper servers but one are killed, or frozen."""
    choice = int(planned.draw * 2 * len(ZOOKEEPERS))
    struck = [name for at, name in enumerate(ZOOKEEPERS) if at != choice // 2]
    make = _kill if choice % 2 else _pause
    faults = [make(pipeline, replace(planned, target=name)) for name in struck]

    def inject() -> None:
        for fault in faults:
            fault.inject()

    def heal() -> None:
        for fault in faults:
            fault.heal()

    how = "killed" if choice % 2 else "frozen"
    return Fault(inject=inject, heal=heal, name=f"{' and '.join(struck)}, {how}")


def _absence(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    """The driver is frozen, or kills itself at a step: in two of three cases between a decision and
    its completion marker, where transactions can be lost."""
    if planned.draw < _FROZEN_SHARE:
        return _pause(pipeline, planned)
    drawn = (planned.draw - _FROZEN_SHARE) / (1 - _FROZEN_SHARE)
    return _failpoint(pipeline, replace(planned, draw=drawn), steps=_DECIDED_STEPS)


def _cut(*, incoming: bool, outgoing: bool) -> Callable[[Pipeline, PlannedFault], Fault]:
    def make(pipeline: Pipeline, planned: PlannedFault) -> Fault:
        link = _LinkOf(_target(pipeline, planned))
        return link.fault(
            lambda of: of.cut(incoming=incoming, outgoing=outgoing), lambda of: of.mend()
        )

    return make


def _slow(*, incoming: bool, outgoing: bool) -> Callable[[Pipeline, PlannedFault], Fault]:
    def make(pipeline: Pipeline, planned: PlannedFault) -> Fault:
        link = _LinkOf(_target(pipeline, planned))
        return link.fault(
            lambda of: of.slow(incoming=incoming, outgoing=outgoing, kbit=_NARROW_KBIT),
            lambda of: of.hasten(),
        )

    return make


class _LinkOf:
    """The network link of a container's present run."""

    def __init__(self, target: Container) -> None:
        self._target = target
        self._pid = target.pid

    def fault(self, inject: Callable[[Link], None], heal: Callable[[Link], None]) -> Fault:
        def end() -> None:
            # A restarted container has a new network.
            if self._target.runs and self._target.pid == self._pid:
                heal(Link(self._pid))

        return Fault(inject=lambda: inject(Link(self._pid)), heal=end, name=self._target.name)


def _disk_full(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    name = planned.target
    disk = pipeline.bed.disks[name]

    def inject() -> None:
        pipeline.expected_down.add(name)  # a broker stops if it cannot write
        disk.fill()

    def heal() -> None:
        disk.clear()
        pipeline.expected_down.discard(name)

    return Fault(inject=inject, heal=heal, name=name)


def _clock(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    name = _target(pipeline, planned).name
    clock = pipeline.bed.clocks[name]
    # A broker's clock jumps only back. After a jump ahead, Kafka would delay a later heartbeat
    # or a vote until that wall-clock time, so the broker would leave its cluster that long.
    is_ahead = planned.draw < 0.5 and name not in BROKERS
    jump_s = _JUMP_S if is_ahead else -_JUMP_S
    return Fault(
        inject=lambda: clock.jump(jump_s),
        heal=lambda: clock.jump(0),
        name=f"{name} by {jump_s:+d} s",
    )


def _rolling_restart(pipeline: Pipeline, planned: PlannedFault) -> Fault:
    def inject() -> None:
        for name in BROKERS:
            broker = pipeline.bed.containers[name]
            pipeline.expected_down.add(name)
            broker.stop(timeout_s=_STOP_S)
            broker.start()
            pipeline.expected_down.discard(name)
            pipeline.wait(pipeline.bed.answers, timeout_s=RECOVERY_S, what=name)

    return Fault(inject=inject, heal=_nothing, name=planned.target)


_MAKERS: dict[str, Callable[[Pipeline, PlannedFault], Fault]] = {
    "kill": _kill,
    "kill-part": _kill_part,
    "pause": _pause,
    "zombie": _zombie,
    "failpoint": _step_of,
    "cut": _cut(incoming=True, outgoing=True),
    "cut-in": _cut(incoming=True, outgoing=False),
    "cut-out": _cut(incoming=False, outgoing=True),
    "slow": _slow(incoming=True, outgoing=True),
    "slow-in": _slow(incoming=True, outgoing=False),
    "slow-out": _slow(incoming=False, outgoing=True),
    "disk-full": _disk_full,
    "clock": _clock,
    "rolling-restart": _rolling_restart,
    "outage": _outage,
    "absence": _absence,
    "no-quorum": _no_quorum,
    "depose": _depose,
}
