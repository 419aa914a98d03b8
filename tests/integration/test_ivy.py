"""Fetching through PySpark's Ivy, from a repository that is a directory of this test."""

import hashlib
import http.server
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch
from sluice.runtime.errors import MissingRequirementError
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_SETTINGS = """
<ivysettings>
  <settings defaultResolver="here"/>
  <resolvers>
    <filesystem name="here">
      <artifact pattern="{root}/[organisation]-[module]-[revision](-[classifier]).[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""

_REMOTE = """
<ivysettings>
  <settings defaultResolver="there"/>
  <resolvers><ibiblio name="there" m2compatible="true" root="{root}/"/></resolvers>
</ivysettings>
"""


@contextmanager
def answering_http(status: HTTPStatus) -> Iterator[str]:
    """A server that gives each request this answer; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one jar, and a user without any cache."""
    repository = tmp_path / "repository"
    repository.mkdir()
    with zipfile.ZipFile(repository / "org-thing-1.jar", "w") as archive:
        archive.writestr("x", "y")
    settings = tmp_path / "settings.xml"
    settings.write_text(_SETTINGS.format(root=repository))
    monkeypatch.setenv("SLUICE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    return repository / "org-thing-1.jar"


def _bundle(checksum: str, *, version: str = "1") -> Bundle:
    return Bundle(
        name=f"thing-{version}",
        artifacts=(Artifact(organisation="org", name="thing", version=version),),
        checksums={f"thing-{version}.jar": checksum},
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_fetched_once_and_then_taken_from_the_cache(
    jar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second call says nothing and needs no repository; a damaged cache is fetched again."""
    bundle = _bundle(_sha256(jar))
    directory = fetch(bundle)
    assert [path.name for path in directory.iterdir()] == ["thing-1.jar"]
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert fetch(bundle) == directory
    assert not capsys.readouterr().err
    (directory / "thing-1.jar").unlink()
    fetch(bundle)
    assert _sha256(directory / "thing-1.jar") == _sha256(jar)


def test_a_file_that_is_no_jar_is_fetched_by_its_classifier(jar: Path) -> None:
    packed = jar.with_name("org-packed-1-all.tar.gz")
    packed.write_bytes(b"archive")
    artifact = Artifact(
        organisation="org",
        name="packed",
        version="1",
        transitive=False,
        archive=("all", "tar.gz"),
    )
    name = "packed-1-all.tar.gz"
    found = fetch(Bundle(name="packed-1", artifacts=(artifact,), checksums={name: _sha256(packed)}))
    assert [path.name for path in found.iterdir()] == [name]


def test_other_bytes_than_the_pinned_ones_are_refused_and_not_kept(
    jar: Path, tmp_path: Path
) -> None:
    """A repository in between that serves something else is caught."""
    with pytest.raises(MissingRequirementError, match="has a wrong checksum"):
        fetch(_bundle("0" * 64))
    assert not (tmp_path / "cache" / "thing-1").exists()


def test_absent_artifact_is_a_typed_error(jar: Path) -> None:
    with pytest.raises(MissingRequirementError, match="thing-2 could not be downloaded") as caught:
        fetch(_bundle("0" * 64, version="2"))
    assert "not found" in str(caught.value.args[1]["reason"])


def test_a_repository_that_fails_is_named_with_its_answer(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering_http(HTTPStatus.BAD_GATEWAY) as address:
        settings = tmp_path / "failing.xml"
        settings.write_text(_REMOTE.format(root=address))
        monkeypatch.setenv("SLUICE_IVY_SETTINGS", str(settings))
        with pytest.raises(MissingRequirementError) as caught:
            fetch(_bundle("0" * 64))
    assert f"Bad Gateway url={address}" in str(caught.value.args[1]["reason"])


def test_two_processes_fetch_once(jar: Path) -> None:
    program = (
        "from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch\n"
        "print(fetch(Bundle(name='thing-1', artifacts=(Artifact(organisation='org', name='thing',"
        f" version='1'),), checksums={{'thing-1.jar': {_sha256(jar)!r}}})))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert answers[0][0] == answers[1][0] != ""
    assert sorted(answer[1].count("\n") for answer in answers) == [0, 2]
