"""Programs that the service starts with ``spark-submit``, and what became of them."""

import json
import logging
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.runtime.errors import ConfigError, MissingRequirementError, StorageError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.job_registry.registration import REGISTRY_VARIABLE, SUBMISSION_VARIABLE
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.serve.requests import SubmitRequest
from sluice.runtime.serve.served_jobs import NoSuchThingError

__all__ = ["OPTIONS", "Submission", "Submissions", "SubmitSettings"]

log = logging.getLogger(__name__)

OPTIONS = (
    *("master", "deploy-mode", "name", "queue"),
    *("driver-memory", "driver-cores", "executor-memory", "executor-cores", "total-executor-cores"),
    "num-executors",
)
"""Options of ``spark-submit`` with plain values."""
FILE_OPTIONS = ("py-files", "files", "archives", "jars")
"""Options with comma-separated files of the submit directory."""
CONF = (
    *("spark.sql.", "spark.executor.", "spark.driver.", "spark.dynamicAllocation.", "spark.task."),
    *("spark.scheduler.", "spark.cores.", "spark.default.", "spark.eventLog.", "spark.ui."),
    *("spark.app.", "spark.network.", "spark.python.worker.", "spark.locality.", "spark.memory."),
)
"""Settings that a request may set begin with one of these."""
_RUNS_CODE = re.compile(
    r".*(?:class|javaoptions|librarypath|extensions|plugins|jars|resource|pyspark\.python).*"
    r"|.*(?:filters|listeners|serializer)|spark\.sql\.catalog\..*",
    re.IGNORECASE,
)
"""Among them, settings that name programs or classes."""
SUBMISSION_ID = re.compile(r"[0-9a-z-]{8,64}")
_MOST = 1_000
_MOST_TEXT = 8 << 10
_KEPT = 1_000
_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSettings:
    """Limits of the programs that requests start.

    Attributes:
        directory: entry points and their files are in it; None: requests start nothing.
        kept_in: records and logs of submissions; made if absent.
        registry: that submitted jobs register in, unless they name another one.
        env: names of variables that a request may set.
        conf: further beginnings of Spark settings that a request may set.
    """

    directory: Path | None
    kept_in: Path
    registry: str
    env: frozenset[str] = frozenset()
    conf: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A program that was started, as its file keeps it.

    Attributes:
        submission_id: names it; a repeated request with the same id starts nothing.
        entry_point: path below the submit directory.
        args: of the program.
        options: of ``spark-submit``.
        settings: names of the Spark settings and variables of the request, without their values.
        submitted_ms, ended_ms: wall clock; ``ended_ms`` None: it runs, or its end was not seen.
        exit_code: None: not known. Negative: the signal that ended it.
    """

    submission_id: str
    entry_point: str
    args: tuple[str, ...]
    options: Mapping[str, str]
    settings: tuple[str, ...]
    submitted_ms: int
    ended_ms: int | None = None
    exit_code: int | None = None


class Submissions:
    """Starts programs in sessions of their own, so that they outlive the service. Any thread."""

    def __init__(self, settings: SubmitSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._awaited: set[str] = set()  # ids whose end this service will write

    def submit(self, request: SubmitRequest) -> dict[str, Any]:
        """Start ``spark-submit`` for a Python file of the submit directory.

        Raises:
            ConfigError: the request names something that is not allowed.
            MissingRequirementError: there is no ``spark-submit``.
        """
        root = self._root()
        program = _file_in(root, request.entry_point, "entry_point")
        if program.suffix != ".py":
            raise _refused("the entry point is no Python file", entry_point=request.entry_point)
        command = [
            _spark_submit(),
            *(text for each in request.options.items() for text in _option(root, *each)),
            *(text for each in request.conf.items() for text in self._conf(*each)),
            str(program),
            *_checked_texts("args", request.args),
        ]
        variables = {name: self._variable(name, value) for name, value in request.env.items()}
        given = request.submission_id
        submission = Submission(
            submission_id=secrets.token_hex(8) if given is None else given,
            entry_point=program.relative_to(root).as_posix(),
            args=request.args,
            options=request.options,
            settings=tuple(sorted([*request.conf, *request.env])),
            submitted_ms=wall_ms(),
        )
        if not SUBMISSION_ID.fullmatch(submission.submission_id):
            raise _refused("the submission id has other characters", expected=SUBMISSION_ID.pattern)
        with self._lock:
            if self._create(submission):
                self._start(submission, command, variables)
        return self.report(submission.submission_id)

    def report(self, submission_id: str) -> dict[str, Any]:
        """The answer to ``GET /v1/submissions/{submission_id}``.

        Raises:
            NoSuchThingError: it is not known.
        """
        with self._lock:  # not between its file and its process
            running = self._awaited | _running_submissions()
            found = self._read(submission_id)
        if found is None:
            raise _unknown(submission_id)
        return _report(found, is_running=found.submission_id in running)

    def reports(self) -> dict[str, Any]:
        """The answer to ``GET /v1/submissions``: newest first."""
        with self._lock:
            running = self._awaited | _running_submissions()
            found = [self._read(each.stem) for each in self._settings.kept_in.glob("*.json")]
        reports = [
            _report(each, is_running=each.submission_id in running) for each in found if each
        ]
        reports.sort(key=lambda each: each["submitted_ms"], reverse=True)
        return {"can_submit": self._settings.directory is not None, "submissions": reports}

    def log_of(self, submission_id: str) -> bytes:
        """The last part of its output."""
        if self._read(submission_id) is None:
            raise _unknown(submission_id)
        try:
            with self._log(submission_id).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                return file.read()
        except FileNotFoundError:
            return b""

    # --- the start --------------------------------------------------------------------------------

    def _start(
        self, submission: Submission, command: list[str], variables: Mapping[str, str]
    ) -> None:
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            REGISTRY_VARIABLE: self._settings.registry,
            **os.environ,
            **variables,
            SUBMISSION_VARIABLE: submission.submission_id,
        }
        failpoint("before-submit")
        try:
            with _private(self._log(submission.submission_id)) as output:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=self._settings.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # signals to the service do not reach it
                )
        except OSError as err:
            self._write(replace(submission, ended_ms=wall_ms()))
            raise MissingRequirementError(
                "spark-submit did not start",
                {"command": command[0], "reason": err.strerror or str(err)},
                "Check that Spark is installed, and that this user may run it.",
            ) from err
        failpoint("after-submit")
        log.info(
            "program submitted: submission_id=%s entry_point=%s pid=%d",
            submission.submission_id,
            submission.entry_point,
            process.pid,
        )
        # For a moment after a program has begun in it, a process shows no environment.
        self._awaited.add(submission.submission_id)
        threading.Thread(
            target=self._await_end,
            args=(submission, process),
            name=f"sluice-submitted-{submission.submission_id}",
            daemon=True,
        ).start()

    def _await_end(self, submission: Submission, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        log.info("program ended: submission_id=%s code=%d", submission.submission_id, code)
        try:
            self._write(replace(submission, ended_ms=wall_ms(), exit_code=code))
        finally:
            self._awaited.discard(submission.submission_id)

    def _root(self) -> Path:
        if self._settings.directory is None:
            raise ConfigError(
                "this service starts no programs",
                {},
                "Start it with --submit-dir: the directory of the entry points.",
            )
        return self._settings.directory.resolve()

    def _conf(self, name: str, value: str) -> tuple[str, str]:
        is_known = name.startswith(CONF) and not _RUNS_CODE.fullmatch(name)
        if not is_known and not (self._settings.conf and name.startswith(self._settings.conf)):
            raise _refused("a request may not set this Spark setting", conf=name)
        (text,) = _checked_texts("conf", [f"{name}={value}"])
        return "--conf", text

    def _variable(self, name: str, value: str) -> str:
        if name not in self._settings.env:
            raise _refused("a request may not set this variable", env=name)
        (text,) = _checked_texts("env", [value])
        return text

    # --- its file ---------------------------------------------------------------------------------

    def _create(self, submission: Submission) -> bool:
        """Make its file. False: an earlier request had the same id."""
        directory = self._settings.kept_in
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = sorted(directory.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for each in old[: max(0, len(old) - _KEPT)]:
            each.unlink(missing_ok=True)
            each.with_suffix(".log").unlink(missing_ok=True)
        try:
            with _private(self._file(submission.submission_id)) as file:
                file.write(json.dumps(to_json(submission)).encode())
        except FileExistsError:
            return False
        return True

    def _write(self, submission: Submission) -> None:
        path = self._file(submission.submission_id)
        temporary = path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        with _private(temporary) as file:
            file.write(json.dumps(to_json(submission)).encode())
        temporary.replace(path)

    def _read(self, submission_id: str) -> Submission | None:
        if not SUBMISSION_ID.fullmatch(submission_id):
            return None
        try:
            return from_json(Submission, parsed_json(self._file(submission_id).read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as err:
            raise StorageError(
                "the file of a submission is damaged",
                {"path": self._file(submission_id), "reason": repr(err)},
                "Delete the file.",
            ) from err

    def _file(self, submission_id: str) -> Path:
        return self._settings.kept_in / f"{submission_id}.json"

    def _log(self, submission_id: str) -> Path:
        return self._settings.kept_in / f"{submission_id}.log"


def _report(found: Submission, *, is_running: bool) -> dict[str, Any]:
    """``unknown``: it does not run now, and no service saw its end or its start."""
    if found.ended_ms is not None:
        state = "ended" if found.exit_code is not None else "not started"
    else:
        state = "running" if is_running else "unknown"
    return {**to_json(found), "state": state}


def _running_submissions() -> set[str]:
    """Ids in the environments of running processes of this user: known also after a restart."""
    variable = f"{SUBMISSION_VARIABLE}=".encode()
    return {
        text.removeprefix(variable).decode("ascii", "replace")
        for environment in _environments()
        for text in environment.split(b"\0")
        if text.startswith(variable)
    }


def _environments() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            yield process.read_bytes()
        except OSError:  # of another user, or ended
            continue


def _file_in(root: Path, name: str, what: str) -> Path:
    """A file below ``root``; links that lead out of it are refused."""
    (text,) = _checked_texts(what, [name])
    path = (root / text).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise _refused("the submit directory has no such file", **{what: name})
    return path


def _option(root: Path, name: str, value: str) -> tuple[str, str]:
    if name in OPTIONS:
        (text,) = _checked_texts(name, [value])
        if text.startswith("-"):
            raise _refused("an option of spark-submit begins with a hyphen", option=name)
        return f"--{name}", text
    if name in FILE_OPTIONS:
        return f"--{name}", ",".join(str(_file_in(root, each, name)) for each in value.split(","))
    raise _refused(
        "a request may not set this option of spark-submit",
        option=name,
        known=",".join((*OPTIONS, *FILE_OPTIONS)),
    )


def _checked_texts(what: str, texts: Iterable[str]) -> list[str]:
    """Arguments of a process: bounded, and without a zero byte."""
    found = list(texts)
    if len(found) > _MOST or any(len(each) > _MOST_TEXT or "\0" in each for each in found):
        raise _refused("an argument is too long or has a zero byte", argument=what)
    return found


def _refused(why: str, **where: str) -> ConfigError:
    return ConfigError(
        why,
        where,
        "Correct the request. The service's options --submit-dir, --submit-conf and --submit-env "
        "set the limits.",
    )


def _unknown(submission_id: str) -> NoSuchThingError:
    return NoSuchThingError(
        "this service knows no such submission",
        {"submission_id": submission_id},
        "List them: `sluice service submissions`.",
    )


def _spark_submit() -> str:
    """The program in ``SPARK_HOME``, or in the installed PySpark."""
    home = os.environ.get("SPARK_HOME")
    package = find_spec("pyspark")
    places = [Path(home)] if home else []
    if package is not None and package.origin:
        places.append(Path(package.origin).parent)
    for place in places:
        if (found := place / "bin" / "spark-submit").is_file():
            return str(found)
    raise MissingRequirementError(
        "there is no spark-submit",
        {"SPARK_HOME": home or "not set"},
        "Set SPARK_HOME, or install sluice-spark[spark].",
    )


def _private(path: Path) -> Any:  # noqa: ANN401 - a file
    """A new file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
