"""`HdfsSink` and its driver's side: what is refused, and when; what is made, and where."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice import HdfsSink, PartitionCommit, Roll
from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, staging_root
from sluice.runtime.contracts import (
    ContinuousWriterFactory,
    Frame,
    FrameSink,
    SinkContext,
    SweepView,
    TaskSink,
)
from sluice.runtime.errors import ConfigError, IllegalTransitionError, StorageError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.fakes import ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

CONTEXT = SinkContext(
    job_uid="job", job_name="j", operator_id="op", checkpoint_uri="file:///c", leader_session_id="s"
)
ROOT = staging_root("orders", job_uid="job", operator_id="op")


class TestSettings:
    """What is said before anything runs."""

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({}, "the directory is empty"),
            ({"path": "/"}, "target"),
            ({"path": "ftp://server/x"}, "ftp: has no tested way"),
            ({"path": "/data/_x"}, "target"),
            ({"path": "/data/x", "format": "parket"}, "Did you mean parquet"),
            ({"path": "/data/x", "options": {"Path": "/data/y"}}, "no option path"),
            ({"path": "/data/x", "options": {"maxRecordsPerFile": "x"}}, "Give a whole number"),
            ({"path": "/data/x", "options": {"maxRecordsPerFile": 1.5}}, "maxRecordsPerFile"),
            ({"path": "/data/x", "options": {"parquet.block.size": "x"}}, "number of bytes"),
            ({"path": "/data/x", "options": {"parquet.block.size": "128m"}}, "value='128m'"),
            ({"path": "/data/x", "options": {"parquet.page.size": 0}}, "number of bytes"),
            ({"path": "/data/x", "options": {"ORC.stripe.size": "-1"}}, "ORC.stripe.size"),
            ({"path": "/data/x", "format": "csv", "options": {"sep": ""}}, "one character"),
            ({"path": "/data/x", "format": "csv", "options": {"delimiter": ""}}, "delimiter"),
        ],
    )
    def test_mistakes_are_named(self, settings: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            HdfsSink(**settings)

    def test_one_name_is_one_column(self) -> None:
        shown = HdfsSink("/d/x", columns="value", partition_by="key").settings()
        assert (shown["columns"], shown["partition_by"]) == ("value", "key")

    def test_keys_of_encrypted_formats_are_not_shown(self) -> None:
        sink = HdfsSink("/d/x", options={"parquet.encryption.key.list": "k1:AAEC", "header": True})
        shown = sink.settings()
        assert "AAEC" not in repr(shown)
        assert shown["option.header"] == "true"
        assert pickle.loads(pickle.dumps(sink)).settings() == shown

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"columns": ["vlaue"]}, "Did you mean value"),
            ({"partition_by": ["kye"]}, "Did you mean key"),
            ({"partition_by": ["key"], "columns": ["value"]}, "no such column to partition by"),
            ({"partition_by": ["key"], "columns": ["key"]}, "files would be empty"),
            ({"partition_by": ["_hidden"]}, "not see"),
            ({"columns": ["key", "value", "key"]}, "have one name"),
            ({"partition_by": ["key", "key"]}, "have one name"),
        ],
    )
    def test_columns_are_checked(self, settings: dict[str, list[str]], said: str) -> None:
        sink = HdfsSink("/d/x", **settings)
        with pytest.raises(ConfigError, match=said):
            sink.check_columns(["_hidden", "key", "value"])

    def test_a_frame_is_refused_by_its_columns_before_spark_is_asked(self) -> None:
        """Which would name neither the sink nor the column that was meant."""
        frame = cast(Frame, SimpleNamespace(columns=["key", "value"]))
        with pytest.raises(ConfigError, match="Did you mean value"):
            HdfsSink("/d/x", columns=["vlaue"]).check_frame(frame)


class TestCoordinator:
    """What a start looks at, makes and deletes."""

    def test_a_check_changes_nothing_and_refuses_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "orders").write_text("a file")
        with pytest.raises(ConfigError, match="is a file"):
            self.on(tmp_path).check(timeout_s=1)
        (tmp_path / "orders").unlink()
        assert self.on(tmp_path).check(timeout_s=1) == {}
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_of_which_sparks_log_reports_what_to_read_is_refused(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "orders" / "_spark_metadata").mkdir(parents=True)
        (tmp_path / "orders" / "_spark_metadata" / "0").write_text("v1")
        with pytest.raises(ConfigError, match=r"/orders/_spark_metadata\b.*another path.*delete"):
            self.on(tmp_path).check(timeout_s=1)
        (tmp_path / "orders" / "_spark_metadata" / "0").unlink()
        (tmp_path / "orders" / "_spark_metadata").rmdir()
        assert self.on(tmp_path).check(timeout_s=1) == {}

    def test_a_claim_makes_both_directories_and_leaves_nothing_in_them(
        self, tmp_path: Path
    ) -> None:
        coordinator = self.on(tmp_path)
        coordinator.claim(CONTEXT, timeout_s=1)
        assert list((tmp_path / "orders").iterdir()) == []
        assert [each.name for each in (tmp_path / ROOT).iterdir()] == [".sluice-lease"]
        coordinator.close()
        assert [each.name for each in (tmp_path / ROOT).iterdir()] == [".sluice-lease"]

    @pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
    def test_a_rename_that_fails_is_said_before_the_first_decision(self, fault: Fault) -> None:
        disk = Disk()

        def opened(uri: str) -> FileSystem:
            return FakeFileSystem(
                disk, uri=uri, fault=lambda step: fault if step == "move" else Fault.NONE
            )

        coordinator = FileSinkCoordinator("fake:///data/orders", opened)
        with pytest.raises(StorageError, match=r"one device .* one encryption zone"):
            coordinator.claim(CONTEXT, timeout_s=1)
        coordinator.close()
        assert set(disk.files) == {f"{ROOT}/.sluice-lease"}

    def test_a_rename_that_is_answered_with_no_is_said_before_the_first_decision(self) -> None:
        """A decided file that keeps its staged name would stop the job for good. No client is left
        after; and nothing is swept before a claim."""
        closed: list[str] = []

        class Refusing(FakeFileSystem):
            def move(self, source: str, path: str) -> bool:
                del source, path
                return False

            def close(self) -> None:
                closed.append(self.uri)

        coordinator = FileSinkCoordinator(
            "fake:///data/orders", lambda uri: Refusing(Disk(), uri=uri)
        )
        view = SweepView(job_uid="job", attempt_ids={"main": 2}, protected=(), orphans=())
        with pytest.raises(IllegalTransitionError, match="before it acquired its lease"):
            coordinator.sweep(view, timeout_s=1)
        with pytest.raises(StorageError, match=r"one device .* one encryption zone"):
            coordinator.claim(CONTEXT, timeout_s=1)
        coordinator.close()
        assert closed == ["fake:///data"]

    def test_a_sweep_deletes_orphans_and_empty_lives_alone(self, tmp_path: Path) -> None:
        coordinator = self.on(tmp_path)
        coordinator.claim(CONTEXT, timeout_s=1)
        old, now = (
            StagingAttempt.draw(BatchKey(region="main", attempt_id=attempt_id, batch_id=1))
            for attempt_id in (1, 2)
        )
        root = tmp_path / ROOT
        kept = [
            root / now.path / "part-0",
            root / "main.1" / "notes.txt",
            root.parent / "other-sink" / old.path / "part-0",
        ]
        for file in [root / old.path / "part-0", root / "gone.0" / "x", *kept]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x")
        (root / "gone.0" / "x").unlink()
        view = SweepView(job_uid="job", attempt_ids={"main": 2}, protected=(), orphans=())
        assert coordinator.sweep(view, timeout_s=1).aborted == 1
        assert not (root / old.path).exists()
        assert not (root / "gone.0").exists()
        assert all(file.exists() for file in kept)

    def test_what_killed_runs_have_left_half_made_goes_in_the_end(self) -> None:
        disk, clock = Disk(), ManualClock()
        coordinator = FileSinkCoordinator(
            "fake:///data/orders", lambda uri: FakeFileSystem(disk, uri=uri), clock=clock
        )
        coordinator.claim(CONTEXT, timeout_s=1)
        view = SweepView(job_uid="job", attempt_ids={"main": 2}, protected=(), orphans=())
        left = [f"{ROOT}/..sluice-lease.{'0' * 32}.tmp", f"{ROOT}/.sluice-probe-{'1' * 32}"]
        theirs = [f"{ROOT}/.sluice-lease", f"{ROOT}/notes.tmp"]
        for path in [*left, *theirs]:
            disk.write(path, b"x")
        coordinator.sweep(view, timeout_s=1)
        assert sorted(disk.files) == sorted([*left, *theirs])
        clock.advance(3600.0)
        disk.write(f"{ROOT}/.sluice-probe-{'2' * 32}", b"x")
        coordinator.sweep(view, timeout_s=1)
        assert sorted(disk.files) == sorted([*theirs, f"{ROOT}/.sluice-probe-{'2' * 32}"])

    @pytest.mark.parametrize("commit", [None, PartitionCommit()])
    def test_partitions_are_marked_where_that_was_asked_for(
        self, tmp_path: Path, commit: PartitionCommit | None
    ) -> None:
        sink = HdfsSink(tmp_path / "orders", partition_by=["dt"], partition_commit=commit)
        first, second = sink.coordinator(), sink.coordinator()
        first.claim(CONTEXT, timeout_s=1)
        try:
            if commit is None:
                second.check(timeout_s=1)
            else:
                with pytest.raises(ConfigError, match="two running jobs"):
                    second.check(timeout_s=1)
        finally:
            second.close()
            first.close()

    @staticmethod
    def on(directory: Path) -> FileSinkCoordinator:
        return FileSinkCoordinator(f"file://{directory}/orders", open_file_system)


class TestObjectStores:
    """The path selects the way to write; the options of the job reach the sink."""

    def test_the_path_selects_uploads(self) -> None:
        """Without roll and partition commit tasks of any engine write; with them the driver."""
        plain = HdfsSink("s3a://bucket/lake/orders")
        assert isinstance(plain, HdfsSink)
        assert isinstance(plain, TaskSink)
        assert not isinstance(plain, FrameSink)
        assert plain.settings()["path"] == "s3://bucket/lake/orders"
        assert isinstance(plain.writer_factory(), ContinuousWriterFactory)
        for more in (
            {"roll": Roll()},
            {"partition_commit": PartitionCommit(), "partition_by": "dt"},
        ):
            sink = HdfsSink("gs://bucket/lake/orders", **more)  # type: ignore[arg-type]
            assert isinstance(sink, FrameSink)
            assert not isinstance(sink, TaskSink)
        assert isinstance(HdfsSink("file:///lake/orders"), FrameSink)

    def test_a_pickled_sink_stays_what_it_is(self) -> None:
        """Workers unpickle it."""
        sink = pickle.loads(pickle.dumps(HdfsSink("s3://bucket/orders", format="json")))
        assert isinstance(sink, TaskSink)
        assert sink.settings()["format"] == "json"

    def test_options_of_the_job_count_unless_the_sink_has_its_own(self) -> None:
        """Tasks get them with the location."""
        jobs = {"aws_endpoint_url": "http://job:1"}
        for own, endpoint in (
            (None, "http://job:1"),
            ({"aws_endpoint_url": "http://own:1"}, "http://own:1"),
        ):
            sink = HdfsSink("s3://bucket/orders", storage_options=own)
            for _ in range(2):
                sink.use_storage_options(jobs)
            factory = pickle.loads(pickle.dumps(sink.writer_factory()))
            assert factory.parent.endpoint == endpoint
        assert "own:1" not in repr(factory)

    @pytest.mark.parametrize("form", ["orc", "csv"])
    def test_a_format_that_tasks_do_not_write_is_refused_at_once(self, form: str) -> None:
        """ORC, and CSV without doubled quotes."""
        with pytest.raises(ConfigError):
            HdfsSink("s3://bucket/orders", format=form)
        HdfsSink("s3://bucket/orders", format="csv", options={"escape": '"'})

    def test_a_bucket_alone_is_no_target(self) -> None:
        """The lease lies beside the target."""
        with pytest.raises(ConfigError, match="target"):
            HdfsSink("s3://bucket")
