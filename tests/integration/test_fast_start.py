"""`fast_start` on real Spark: the archive and the daemon are used, and neither can do harm."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sluice.runtime.spark.fast_start.class_archive import SparkClasses, prepare_archive
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_ROOT = Path(__file__).parents[2]
_PROGRAM = Path(__file__).with_name("fast_start_program.py")
_QUICK_PYTHON = _ROOT / "runtime" / "spark" / "fast_start" / "quick_python"
_PREPARE_S = 2400


def _run(
    environment: Mapping[str, str], settings: Mapping[str, str], log: Path
) -> tuple[dict[str, Any], str]:
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    loaded = f"-Xlog:class+load:file={log}"
    arguments = {**quiet, **settings, "spark.driver.extraJavaOptions": loaded}
    answer = subprocess.run(
        [sys.executable, _PROGRAM, *(f"{name}={value}" for name, value in arguments.items())],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        cwd=log.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1]), answer.stdout + answer.stderr


def _from_archive(log: Path) -> float:
    """Share of the classes that the JVM took from an archive other than its own."""
    lines = log.read_text("utf-8").splitlines()
    return sum("shared objects file (top)" in line for line in lines) / len(lines)


@pytest.mark.timeout(_PREPARE_S)
@pytest.mark.extended
def test_session_uses_the_archive_and_the_daemon(tmp_path: Path) -> None:
    """Most classes come from the archive; tasks run PySpark's files, forked with what they need."""
    prepare_archive()
    log = tmp_path / "classes"
    seen, _ = _run({}, {}, log)
    assert _from_archive(log) > 0.5
    assert "sluice.runtime.spark.fast_start.python_daemon" in seen["daemon"]
    assert seen["daemon_threads"] == 1
    assert seen["imported_ahead"]
    assert seen["frozen_objects"] > 50_000, "else each task ends in a search through all of them"
    assert seen["pyspark"] == pyspark.__file__
    assert seen["version"] == pyspark.__version__
    assert not [entry for entry in seen["search_path"] if entry.endswith("pyspark.zip")]


@pytest.mark.long
@pytest.mark.timeout(_PREPARE_S)
def test_archive_that_does_not_fit_is_harmless(tmp_path: Path) -> None:
    """Another class path: Java loads its classes as ever, and says nothing."""
    prepare_archive()
    log, jar = tmp_path / "classes", tmp_path / "mine.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("mine", b"")
    _, written = _run({}, {"spark.driver.extraClassPath": str(jar)}, log)
    assert _from_archive(log) == 0.0
    assert "[cds" not in written
    assert "[warning]" not in written


@pytest.mark.long
def test_broken_archive_is_harmless(tmp_path: Path) -> None:
    content = b"no classes at all\n" * 10_000
    name = SparkClasses.of_this_process().shared.archive_name(len(content))
    (tmp_path / name).write_bytes(content)
    log = tmp_path / "classes"
    seen, written = _run({"SLUICE_CACHE": str(tmp_path)}, {}, log)
    assert seen["version"] == pyspark.__version__
    assert _from_archive(log) == 0.0
    assert "[cds" not in written
    assert "[warning]" not in written


_TWO_WORKERS = """
import os
from sluice.runtime.spark.fast_start.python_daemon import import_ahead
import_ahead()
import numpy
for _ in range(2):
    if os.fork() == 0:
        print(numpy.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_draw_different_numbers() -> None:
    """NumPy's own generator is imported before the fork, and would be the same in each worker."""
    answer = subprocess.run(
        [sys.executable, "-c", _TWO_WORKERS],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert len(set(answer.stdout.split())) == 2


def _prepared(directory: Path, *words: str) -> str:
    library = Path(pyspark.__file__).parent / "python" / "lib"
    path = [*library.glob("*.zip"), _QUICK_PYTHON, _ROOT, directory]
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    answer = subprocess.run(
        [sys.executable, "-v", *words],
        env={**inherited, "PYTHONPATH": os.pathsep.join(map(str, path))},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return answer.stderr.decode("utf-8", "replace")


def test_processes_of_a_source_run_pysparks_files(tmp_path: Path) -> None:
    said = _prepared(tmp_path, "-m", "pyspark.find_spark_home")
    assert "import 'pyspark'" in said
    assert "pyspark.zip/pyspark" not in said
    assert "pyspark.zip/pyspark" in _prepared(tmp_path, "-c", "import pyspark")


def test_who_plans_a_source_forks_with_what_it_needs(tmp_path: Path) -> None:
    """Spark's daemon ends with its input, which is empty here."""
    said = _prepared(tmp_path, "-m", "pyspark.daemon", "pyspark.sql.worker.create_data_source")
    assert "import 'sluice.runtime.spark.microbatch.job_source'" in said
    assert "import 'pyarrow'" in said
    assert said.count("import 'site'") == 1, "it had a thread, and had to begin again"
    other = _prepared(tmp_path, "-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources")
    assert "import 'sluice.runtime.spark.microbatch.job_source'" not in other


def test_a_sitecustomize_of_the_users_own_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import smtplib\n", "utf-8")
    assert "import 'smtplib'" in _prepared(tmp_path, "-m", "pyspark.find_spark_home")


def test_the_daemon_itself_is_not_loaded_before_it_runs(tmp_path: Path) -> None:
    """Python warns of that at each start, as of something unpredictable."""
    said = _prepared(
        tmp_path, "-m", "sluice.runtime.spark.fast_start.python_daemon", "pyspark.worker"
    )
    assert "import 'pyspark.worker'" in said
    assert "RuntimeWarning" not in said
