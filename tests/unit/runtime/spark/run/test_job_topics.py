"""The uid of a new job that several drivers describe at once, and its topics on their way to them."""

import threading
from pathlib import Path

import pytest

from sluice.runtime.contracts import JobTopic
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.state.batch_lineage import BatchLineage, Rewind
from sluice.runtime.service.hosting.host_messages import RunTopic
from sluice.runtime.spark.run import job_topics
from sluice.runtime.spark.run.job_topics import claimed_uid
from sluice.runtime.storage.local_fs import LocalFileSystem


class _KilledError(Exception):
    """A driver dies."""


def test_all_drivers_of_a_new_job_have_the_same_uid(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(claimed_uid(LocalFileSystem(tmp_path))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert claimed_uid(LocalFileSystem(tmp_path)) == found[0]
    assert [each.name for each in tmp_path.iterdir()] == ["_job-uid"]


@pytest.mark.parametrize("point", ["before-job-uid", "after-job-uid"])
def test_a_driver_may_die_while_it_draws_the_uid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Twice in a row; then all drivers have one uid, that of a dead one if it stands."""

    def die(name: str) -> None:
        if name == point:
            raise _KilledError

    fs = LocalFileSystem(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(job_topics, "failpoint", die)
        with pytest.raises(_KilledError):
            claimed_uid(fs)
        standing = fs.read("_job-uid")
        assert (standing is not None) is (point == "after-job-uid")
        if standing is None:
            with pytest.raises(_KilledError):
                claimed_uid(fs)
    uid = claimed_uid(fs)
    assert claimed_uid(fs) == uid
    assert standing in (None, f"{uid}\n".encode())


@pytest.mark.parametrize("rewinds", [0, 2])
def test_a_host_gets_a_topic_as_the_leader_has_it(rewinds: int) -> None:
    rewind = Rewind(attempt_id=9, run_attempt_id=3, batches={"main": (3, 7), "other": (4, -1)})
    topic = JobTopic(partitions=8, max_parallelism=1_024, lineage=BatchLineage((rewind,) * rewinds))
    sent = to_json((RunTopic.of("source", topic),))
    (found,) = from_json(tuple[RunTopic, ...], sent)
    assert (found.source_id, found.topic) == ("source", topic)
