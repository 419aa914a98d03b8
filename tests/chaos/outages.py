"""Waits of a test that takes something away from a running job: the job must live all along."""

from tests.chaos.scenario import Scenario
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

_MORE = 2
_MORE_RECORDS = 200


def await_more_files(scenario: Scenario, program: MortalProgram) -> None:
    """Wait until a reader has found new files; the program must not have ended."""
    target = len(scenario.files_observer.seen) + _MORE

    def found() -> bool:
        assert program.exit_code is None, program.log_tail()
        return len(scenario.files_observer.seen) >= target

    wait_for(found, what="files of the running job")


def await_more_records(scenario: Scenario, program: MortalProgram) -> None:
    """The same of records of the output."""
    target = scenario.observer.total + _MORE_RECORDS

    def seen() -> bool:
        assert program.exit_code is None, program.log_tail()
        return scenario.observer.total >= target

    wait_for(seen, what="records of the running job")


def await_log(program: MortalProgram, text: str, *, times: int) -> None:
    """Wait until the program has said ``text`` so often; it must not have ended."""

    def said() -> bool:
        assert program.exit_code is None, program.log_tail()
        return program.log().count(text) >= times

    wait_for(said, what=f"{text!r} in the log, {times} times")
