"""Which archive of loaded classes fits a program, and how one comes into the cache."""

import os
import shutil
from pathlib import Path

import pytest

from sluice.runtime.embedded.cache import exclusive
from sluice.runtime.embedded.shared_classes import SharedClasses, reading_options, writing_options
from sluice.runtime.errors import MissingRequirementError

_CONTENT = b"classes"


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedClasses:
    (tmp_path / "java").touch()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").touch()
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    jars = tmp_path / "jars"
    return SharedClasses(program="p", java=tmp_path / "java", places=(jars,), jars=jars)


def _write(path: Path) -> None:
    path.write_bytes(_CONTENT)


def test_archive_is_made_once_and_found(classes: SharedClasses) -> None:
    """The second call finds the first one's, and starts nothing."""
    assert classes.find() is None
    made = classes.prepare(_write, timeout_s=1)
    assert made.elapsed_s is not None
    assert made.path.read_bytes() == _CONTENT
    again = classes.prepare(lambda _: pytest.fail("it was there"), timeout_s=1)
    assert (again.path, again.elapsed_s) == (made.path, None)
    assert classes.find() == made.path


@pytest.mark.parametrize("content", [b"class", b"classes and more", b""])
def test_archive_of_another_size_is_not_used(classes: SharedClasses, content: bytes) -> None:
    """Java 17 would die of one that was cut short, with SIGBUS; the next making mends it."""
    made = classes.prepare(_write, timeout_s=1)
    made.path.write_bytes(content)
    assert classes.find() is None
    classes.prepare(_write, timeout_s=1)
    assert classes.find() == made.path


@pytest.mark.parametrize("changed", ["java", "jars/a.jar", "jars/b.jar"])
def test_archive_of_another_java_or_other_jars_is_not_used(
    classes: SharedClasses, changed: str
) -> None:
    """Whether exchanged or added."""
    classes.prepare(_write, timeout_s=1)
    path = classes.java.parent / changed
    path.unlink(missing_ok=True)
    path.touch()
    assert classes.find() is None


def test_archive_of_another_class_path_is_not_used(classes: SharedClasses, tmp_path: Path) -> None:
    """The same jars after another directory are another class path."""
    classes.prepare(_write, timeout_s=1)
    places = (tmp_path, *classes.places)
    other = SharedClasses(program="p", java=classes.java, places=places, jars=classes.jars)
    assert other.find() is None


def test_lost_java_or_cache_is_no_error(
    classes: SharedClasses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", "/nowhere")
    assert classes.find() is None
    classes.java.unlink()
    assert classes.find() is None


def test_failed_making_leaves_nothing(classes: SharedClasses, tmp_path: Path) -> None:
    """Neither half an archive nor a directory; and the lock is free."""

    def fail(path: Path) -> None:
        path.write_bytes(b"cla")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        classes.prepare(fail, timeout_s=1)
    with pytest.raises(MissingRequirementError, match="wrote no archive"):
        classes.prepare(lambda _: None, timeout_s=1)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["p-classes.lock"]
    classes.prepare(_write, timeout_s=0)


def test_killed_making_is_cleared_away(classes: SharedClasses, tmp_path: Path) -> None:
    def killed(path: Path) -> None:
        _write(path)
        shutil.copytree(path.parent, tmp_path / "cache" / f"{path.parent.name}-left")

    classes.prepare(killed, timeout_s=1)
    made = classes.find()
    assert made is not None
    made.unlink()
    classes.prepare(_write, timeout_s=1)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {made.name, "p-classes.lock"}


def test_archive_is_made_by_one_process_at_a_time(classes: SharedClasses, tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "cache" / "p-classes.lock", timeout_s=1),
        pytest.raises(MissingRequirementError, match="lock"),
    ):
        classes.prepare(_write, timeout_s=0)


def test_archives_that_were_used_last_are_kept(classes: SharedClasses, tmp_path: Path) -> None:
    """Four of a program, and none of another program is touched."""
    cache = tmp_path / "cache"
    for number in range(6):
        path = cache / f"p-classes-{number}-1.jsa"
        path.touch()
        os.utime(path, (number, number))
    (cache / "q-classes-0-1.jsa").touch()
    made = classes.prepare(_write, timeout_s=1)
    kept = {path.name for path in cache.glob("p-*.jsa")}
    assert kept == {made.path.name, *(f"p-classes-{number}-1.jsa" for number in (3, 4, 5))}
    assert (cache / "q-classes-0-1.jsa").exists()


def test_use_of_an_archive_keeps_it(classes: SharedClasses) -> None:
    made = classes.prepare(_write, timeout_s=1)
    os.utime(made.path, (1, 1))
    classes.find()
    assert made.path.stat().st_mtime > 1


def test_options_silence_java_about_an_archive_that_does_not_fit() -> None:
    path = Path("/c/a.jsa")
    assert reading_options(path)[-1] == "-XX:SharedArchiveFile=/c/a.jsa"
    assert writing_options(path)[-1] == "-XX:ArchiveClassesAtExit=/c/a.jsa"
    assert reading_options(path)[:-1] == writing_options(path)[:-1]
    assert all(option.endswith("=off") for option in reading_options(path)[:-1])
