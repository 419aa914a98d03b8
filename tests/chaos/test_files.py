"""Files under kills and outages: nothing lost, doubled or torn, and a topic beside them agrees."""

import signal
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.beds import FILES, MARKS, ROLLING, TELLING, kills, twice
from tests.chaos.outages import await_log, await_more_files
from tests.chaos.programs import BOTH, FILES_DROP_IN, MARKED_FILES, ROLLING_COPY
from tests.chaos.published_files import PublishedFiles
from tests.chaos.scenario import START_S, Kill, Scenario, survive
from tests.kit.files.hdfs_admin import safe_mode, space_quota
from tests.kit.waiting import wait_for

INTERRUPTED_S = 600.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
    "names",
    [("mid-rename",), pytest.param(("after-stage", "mid-commit"), marks=pytest.mark.extended)],
    ids=", ".join,
)
def test_files_with_decision_and_rename_settled_a_topic_and_files_show_an_epoch_both_or_neither(
    kafka: EmbeddedKafka, tmp_path: Path, names: tuple[str, ...]
) -> None:
    survive(BOTH, kafka, tmp_path, kills(names))


@pytest.mark.long
def test_rename_settled_files_on_hdfs_survive_a_kill_and_every_outage(
    kafka: EmbeddedKafka, tmp_path: Path, hdfs: EmbeddedHdfs, hadoop_client: Any
) -> None:
    """Rule `rename-settled`: killed between renames; then, in one run that never ends, safe mode,
    a lost DataNode and a stopped NameNode. The job says that it waits, and continues by itself,
    exactly. Ctrl-C ends one that waits."""
    root = f"{hdfs.uri}/{uuid.uuid4().hex}"
    files = PublishedFiles(fs=open_file_system(root, hadoop_client), name="files")
    with Scenario(BOTH, kafka.bootstrap, tmp_path, files=files) as scenario:
        scenario.kill_at(Kill(failpoint="mid-rename", hit=2))
        killed_at = _newest_checkpoint(tmp_path)
        program = scenario.start()
        # A start does not wait for a file system; after its seal it is over with a decision.
        wait_for(lambda: _newest_checkpoint(tmp_path) > killed_at + 1, what="a decision")
        await_more_files(scenario, program)
        for outage in (_safe_mode(hdfs, hadoop_client), _lost_data_node(hdfs), _stopped(hdfs)):
            waits = program.log().count("\nwaiting for")
            with outage:
                await_log(program, "\nwaiting for", times=waits + 1)
            await_more_files(scenario, program)
        waits = program.log().count("\nwaiting for")
        with _stopped(hdfs):
            await_log(program, "\nwaiting for", times=waits + 1)
            program.interrupt()
            assert program.await_exit(timeout_s=INTERRUPTED_S) == 128 + signal.SIGINT
        scenario.finish()


@pytest.mark.long
def test_files_of_a_drop_in_survive_a_kill_where_the_truth_changes_hands(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Its tasks stage the files, its user's process publishes them."""
    names = ("after-stage", "mid-rename")
    survive(FILES_DROP_IN, kafka, tmp_path, kills(names))


@pytest.mark.extended
def test_files_with_decision_held_files_survive_a_kill_in_a_merge_and_where_they_are_published(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    survive(ROLLING_COPY, kafka, tmp_path, kills(("mid-merge", "mid-rename")))


@pytest.mark.long
def test_a_full_hdfs_ends_the_job_with_what_to_do_and_the_next_start_is_exact(
    kafka: EmbeddedKafka, tmp_path: Path, hdfs: EmbeddedHdfs, hadoop_client: Any
) -> None:
    """A quota stands for the disk. A human must make room; nothing has to be cleaned or chosen."""
    root = f"{hdfs.uri}/{uuid.uuid4().hex}"
    files = PublishedFiles(fs=open_file_system(root, hadoop_client), name="files")
    with Scenario(BOTH, kafka.bootstrap, tmp_path, files=files) as scenario:
        program = scenario.start()
        await_more_files(scenario, program)
        with space_quota(hadoop_client, root, 1):
            assert program.await_exit(timeout_s=START_S) != 0
        assert "StorageError: there is no room to write the staged files" in program.log()
        assert f"staging={root}/.sluice-staging-files/" in program.log()
        scenario.finish()


def _newest_checkpoint(directory: Path) -> int:
    return max(int(path.name.partition("-")[2]) for path in directory.glob("checkpoint/chk-*"))


def _safe_mode(hdfs: EmbeddedHdfs, jvm: Any) -> AbstractContextManager[None]:
    return safe_mode(jvm, hdfs.uri)


@contextmanager
def _lost_data_node(hdfs: EmbeddedHdfs) -> Iterator[None]:
    assert hdfs.data_node is not None
    hdfs.data_node.kill()
    try:
        yield
    finally:
        hdfs.start()


@contextmanager
def _stopped(hdfs: EmbeddedHdfs) -> Iterator[None]:
    hdfs.stop()
    try:
        yield
    finally:
        hdfs.start()


@pytest.mark.long
@pytest.mark.parametrize("failpoint", [*FILES, *TELLING])
def test_both_survive_two_kills_in_a_row(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    survive(BOTH, kafka, tmp_path, twice(failpoint))


@pytest.mark.long
@pytest.mark.parametrize("failpoint", [*ROLLING, "before-stage", "after-decision", "mid-rename"])
def test_held_files_survive_two_kills_in_a_row(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    survive(ROLLING_COPY, kafka, tmp_path, twice(failpoint))


@pytest.mark.long
@pytest.mark.parametrize("failpoint", MARKS)
def test_marks_survive_two_kills_in_a_row(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    survive(MARKED_FILES, kafka, tmp_path, twice(failpoint))
