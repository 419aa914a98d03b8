"""Which settings a session gets for a faster start, and when it gets none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.embedded.ivy import pyspark_jars
from sluice.runtime.errors import ConfigError
from sluice.runtime.process.interpreter import PLAN_ONCE
from sluice.runtime.spark.fast_start import class_archive
from sluice.runtime.spark.fast_start.class_archive import (
    SparkClasses,
    find_archive,
    prepare_archive,
)
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start
from sluice.runtime.spark.fast_start.python_daemon import surplus_archives

_JAVA = "spark.driver.defaultJavaOptions"
_DAEMON = "spark.python.daemon.module"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "java" / "bin").mkdir(parents=True)
    (tmp_path / "java" / "bin" / "java").touch()
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "a.jar").touch()
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    return tmp_path / "cache"


def _put_archive(directory: Path, content: bytes = b"classes") -> Path:
    path = directory / SparkClasses.of_this_process().shared.archive_name(len(content))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_local_session_gets_the_archive_and_the_daemon(cache: Path, master: str) -> None:
    """The archive among Java's default options: the user's own options are another setting."""
    archive = _put_archive(cache)
    settings = fast_start(master)
    assert settings[_JAVA].endswith(f"-XX:SharedArchiveFile={archive}")
    assert settings[_DAEMON] == "sluice.runtime.spark.fast_start.python_daemon"
    assert len(settings) == 2


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "local-cluster[2,1,1024]", ""])
def test_other_masters_get_nothing(cache: Path, master: str) -> None:
    """Executors on other machines have neither the archive nor, perhaps, the package."""
    _put_archive(cache)
    assert fast_start(master) == {}


def test_archive_that_was_cut_short_is_not_used(cache: Path) -> None:
    _put_archive(cache).write_bytes(b"clas")
    assert set(fast_start("local")) == {_DAEMON}


@pytest.mark.parametrize("changed", ["spark/jars/b.jar", "java/bin/java"])
def test_archive_of_another_java_or_other_jars_is_not_used(cache: Path, changed: str) -> None:
    _put_archive(cache)
    path = cache.parent / changed
    path.unlink(missing_ok=True)
    path.touch()
    assert find_archive() is None


def test_archive_serves_every_way_to_the_same_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment after a link: PySpark starts its own home after it, so Java sees one
    class path. Each would make an archive of its own else, and drop the other's."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    named = SparkClasses.of_this_process().shared.archive_name("*")
    (tmp_path / "linked").symlink_to(pyspark_jars().parent)
    monkeypatch.setattr(class_archive, "pyspark_jars", lambda: tmp_path / "linked" / "jars")
    assert SparkClasses.of_this_process().shared.archive_name("*") == named


@pytest.mark.usefixtures("cache")
def test_workers_with_another_interpreter_keep_sparks_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another-python")
    assert fast_start("local") == {}


@pytest.mark.usefixtures("cache")
def test_without_java_there_is_no_archive_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert find_archive() is None


def test_preparing_names_the_directory_in_the_way(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(cache.parent / "spark"))
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(ConfigError, match="configuration directory"):
        prepare_archive()
    assert list(cache.iterdir()) == []


def test_only_archives_of_the_same_installation_are_surplus() -> None:
    home = Path("/site/pyspark")
    surplus = [
        "/site/pyspark/python/lib/pyspark.zip",
        "/site/pyspark/python/lib/py4j-0.10.9.9-src.zip",
        "/site/pyspark/jars/spark-core_2.13-4.3.0.jar",
    ]
    needed = [
        "",
        "/home/user/mine.zip",
        "/opt/spark/python/lib/pyspark.zip",
        "/site",
        "/site/pyspark/python/lib/py4j-0.10.9.8-src.zip",
        "/usr/lib/python311.zip",
    ]
    assert list(surplus_archives([*needed, *surplus], home, "0.10.9.9")) == surplus
    assert list(surplus_archives(surplus, home, None)) == [surplus[0], surplus[2]]


@pytest.mark.parametrize(("once", "answer"), [(True, -1), (False, -4)])
def test_a_planner_of_a_drop_in_query_answers_that_spark_must_end_it(
    once: bool, answer: int
) -> None:
    """As Spark's daemon of planners begins; -4 lets Spark use a process again (`SpecialLengths`)."""
    program = """
import io
from sluice.runtime.spark.fast_start.python_daemon import prepare
prepare(["python", "-m", "pyspark.daemon", "pyspark.sql.worker.create_data_source"])
from pyspark.serializers import SpecialLengths
from pyspark.sql.worker import utils
for value in (SpecialLengths.END_OF_STREAM, 7):
    sent = io.BytesIO()
    utils.write_int(value, sent)
    print(int.from_bytes(sent.getvalue(), signed=True))
"""
    environment = os.environ | ({PLAN_ONCE: "1"} if once else {})
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(answer), "7"]
