"""Single points of a Spark cluster: a host that dies, and one that hangs and comes back."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from benchmarks.regions.mortal_sink import PRE_COMMITTED, WRITTEN, Doom
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.topic_history import EndWatch
from sluice.runtime.errors import ConfigError
from sluice.runtime.job.job_cli import app as job_commands
from sluice.runtime.serve.requests import DrainRequest
from tests.chaos.dropped import on_record, require_the_rest_once
from tests.chaos.programs import MORTAL_COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.chaos.spark_start import spark_environment
from tests.kit.mortal_program import MortalProgram
from tests.kit.served_jobs_bed import service_of
from tests.kit.spark_cluster import SparkCluster
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

HOSTS = ("127.0.0.1", "127.0.0.2")
_LOST_AFTER_S = 10
# As Spark is by itself: an executor that dies is missed at once, for its connection ends, and one
# misses a frozen driver later than its tasks do.
_PATIENT = {"spark.executor.memory": "512m"}
_HASTY = {
    **_PATIENT,
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": f"{_LOST_AFTER_S}s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": f"{_LOST_AFTER_S}s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers of one core each, on hosts of different names; the last test takes one away."""
    with SparkCluster(tmp_path_factory.mktemp("cluster"), hosts=HOSTS) as made:
        yield made


_FED_MEANWHILE = 400  # records: two seconds
_ENDS = "a continuous task ends: region="


def setting(conf: Mapping[str, str] = _PATIENT, /, **environment: str) -> Setting:
    before = spark_environment()["PYSPARK_SUBMIT_ARGS"]
    more = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    spark = {"PYSPARK_SUBMIT_ARGS": f"{more} {before}"}
    return Setting(partitions=4, environment=spark | environment)


@pytest.fixture
def scenario(
    kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scenario]:
    of_single_points = setting(getattr(request, "param", _PATIENT), RECOVERY="single-point")
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, of_single_points) as made:
        yield made


def started(scenario: Scenario, cluster: SparkCluster) -> MortalProgram:
    program = scenario.start(arguments=["--master", cluster.url])

    def runs_on_both() -> bool:
        assert program.exit_code is None, program.log_tail()
        return all(cluster.has_tasks(number) for number in (0, 1))

    wait_for(runs_on_both, what="tasks on both workers")
    scenario.observer.await_total(scenario.observer.total + 1, timeout_s=START_S)
    return program


def await_open_transactions(scenario: Scenario) -> None:
    ends = EndWatch(scenario.topics.connection, scenario.topics.output)
    wait_for(lambda: not ends.now().is_settled, poll_s=0.01, what="records in open transactions")


def sees_more(scenario: Scenario) -> None:
    scenario.observer.await_total(scenario.feeder.sent, timeout_s=START_S)


@pytest.mark.long
@pytest.mark.parametrize("scenario", [_HASTY], indirect=True, ids=["hasty"])
def test_ids_never_reused_a_host_that_hangs_and_continues_adds_nothing(
    scenario: Scenario, cluster: SparkCluster
) -> None:
    """Beyond every time-out: its tasks run elsewhere, and it wakes up in the middle of its own."""
    program = started(scenario, cluster)
    await_open_transactions(scenario)
    frozen = cluster.freeze(0)
    sees_more(scenario)
    cluster.thaw(frozen)
    sees_more(scenario)

    assert "region restarted" not in program.log()
    scenario.finish_running(program)


@pytest.mark.long
def test_ids_never_reused_a_continuous_task_that_hangs_and_continues_adds_nothing(
    kafka: EmbeddedKafka, cluster: SparkCluster, tmp_path: Path
) -> None:
    """Beyond every time-out: its region begins a new attempt on the other host, and the old task wakes
    up with a transaction that is open, and records to send."""
    continuous = setting(_HASTY, ENGINE="continuous")
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, continuous) as scenario:
        program = scenario.start(arguments=["--master", cluster.url])
        scenario.observer.await_total(1, timeout_s=START_S)
        (host,) = [number for number in (0, 1) if cluster.has_tasks(number)]
        frozen = cluster.freeze(host)
        wait_for(lambda: "region restarted" in program.log(), timeout_s=START_S, what="a new life")
        sees_more(scenario)
        cluster.thaw(frozen)
        sees_more(scenario)
        scenario.finish_running(program)


@pytest.mark.long  # a busy machine may not see every partition move in the seconds before the end
def test_continuous_order_tasks_of_a_frozen_driver_continue_and_then_end_by_themselves(
    kafka: EmbeddedKafka, cluster: SparkCluster, tmp_path: Path
) -> None:
    """Stopped beyond the time that its tasks live without it, and beyond their transactions'. Then
    the driver continues, and every record is there once."""
    times = {"LOST_TIMEOUT_S": "5", "TRANSACTION_TIMEOUT_S": "16", "ON_LOST": "repair"}
    frozen = setting(ENGINE="continuous", REGIONS="2", **times)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, frozen) as scenario:
        program = started(scenario, cluster)
        ends = EndWatch(scenario.topics.connection, scenario.topics.output)
        said = cluster.executor_logs().count(_ENDS)
        program.pause()
        begun = ends.high()
        wait_for(
            lambda: all(end > begun[partition] for partition, end in ends.high().items()),
            what="tasks that go on",
        )
        wait_for(
            lambda: cluster.executor_logs().count(_ENDS) == said + 2,
            timeout_s=START_S,
            what="the end of both tasks",
        )
        wait_for(lambda: ends.now().is_settled, what="what was open, aborted by the broker")
        last, sent = ends.high(), scenario.feeder.sent
        wait_for(lambda: scenario.feeder.sent > sent + _FED_MEANWHILE, what="more to read")
        assert ends.high() == last, "a task writes on"
        assert program.exit_code is None
        assert program.is_driver_paused()

        program.resume()
        sees_more(scenario)
        assert "region restarted" in program.log()
        scenario.finish_running(program)


def test_a_region_comes_back_off_a_host_by_command(
    scenario: Scenario, cluster: SparkCluster
) -> None:
    """In the middle of an epoch; nothing of the job runs there any more, and nothing is lost or
    doubled. A host that Spark does not know, and the last one, are refused by name."""
    program = started(scenario, cluster)
    await_open_transactions(scenario)
    (region,) = [found["region"] for found in status_of(scenario)["regions"]]

    def restart(*hosts: str) -> Result:
        excluded = [word for host in hosts for word in ("--exclude-host", host)]
        place = str(scenario.checkpoint)
        return CliRunner().invoke(job_commands, ["restart", place, "--region", region, *excluded])

    refused = restart("127.0.0.3")
    assert isinstance(refused.exception, ConfigError)
    assert "known=127.0.0.1,127.0.0.2" in str(refused.exception)
    none_left = restart(*HOSTS)
    assert "no executor would be left" in str(none_left.exception)
    assert "region restarted" not in program.log()

    done = restart(HOSTS[1])
    assert done.output.splitlines()[-1] == "ended executors on excluded hosts: 1", done.output
    wait_for(lambda: not cluster.has_tasks(1), what="no task on the host")
    wait_for(lambda: "region restarted" in program.log(), what="a new life")
    sees_more(scenario)
    assert cluster.has_tasks(0)
    assert not cluster.has_tasks(1)
    assert [found["ended"] for found in status_of(scenario)["regions"]] == [1]
    scenario.finish_running(program)


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_a_host_is_drained_through_the_service(
    kafka: EmbeddedKafka, cluster: SparkCluster, tmp_path: Path, engine: str
) -> None:
    """A full checkpoint, then the region runs elsewhere. The driver cannot move, and is named."""
    registry = f"file://{tmp_path}/registry"
    registered = setting(ENGINE=engine, SLUICE_REGISTRY=registry)
    with (
        Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, registered) as scenario,
        service_of(registry, tmp_path / "service") as service,
        service.client() as client,
    ):
        program = scenario.start(arguments=["--master", cluster.url])
        scenario.observer.await_total(1, timeout_s=START_S)

        def placed() -> tuple[str, dict[str, Any]] | None:
            for uid in [each["job_uid"] for each in client.get("/v1/jobs")["jobs"]]:
                for host in HOSTS:
                    (found,) = client.get(f"/v1/hosts/{host}/jobs")["jobs"] or [{}]
                    if found.get("regions"):
                        return host, {"uid": uid, **found}
            return None

        place = wait_for(placed, what="a host with a region")
        assert place is not None
        host, found = place
        assert cluster.has_tasks(HOSTS.index(host)) or engine == "micro-batch"
        request_id = client.post(f"/v1/hosts/{host}/drain", DrainRequest())["request_id"]

        def ended() -> dict[str, Any] | None:
            report = client.get(f"/v1/drains/{request_id}")
            return None if report["state"] == "running" else report

        report = wait_for(ended, what="the end of the drain")
        assert report is not None
        (job,) = report["jobs"]
        assert (job["job_uid"], job["state"], job["error"]) == (found["uid"], "moved", None)
        assert (Path(job["full_checkpoint"].removeprefix("file://")) / "_metadata").exists()
        assert {each["what"] for each in report["left"]} <= {"driver"}
        assert not cluster.has_tasks(HOSTS.index(host))
        sees_more(scenario)
        scenario.finish_running(program)


def test_ids_never_reused_a_task_that_dies_after_a_shuffle_is_tried_again_alone(
    kafka: EmbeddedKafka, cluster: SparkCluster, tmp_path: Path
) -> None:
    """The second attempt reads what the tasks before the shuffle have left; the region does not
    notice."""
    doom = Doom(tmp_path / "doom")
    shuffling = setting(RECOVERY="single-point", SHUFFLE="yes", DOOM=str(doom.directory))
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, shuffling) as scenario:
        program = started(scenario, cluster)
        (region,) = [found["region"] for found in status_of(scenario)["regions"]]
        for count, moment in enumerate((WRITTEN, PRE_COMMITTED), start=1):
            doom.request(region, moment)
            wait_for(
                lambda count=count: len(doom.deaths()) >= count,  # type: ignore[misc]
                timeout_s=START_S,
                what=f"a task to die: {moment}",
            )
        sees_more(scenario)

        assert [found["ended"] for found in status_of(scenario)["regions"]] == [0]
        assert "region restarted" not in program.log()
        scenario.finish_running(program)


@pytest.mark.long
def test_what_a_task_of_a_cluster_drops_is_on_record_and_nothing_else_is_missing(
    kafka: EmbeddedKafka, cluster: SparkCluster, tmp_path: Path
) -> None:
    """Approximate recovery: the second attempt reads nothing, on whichever host it runs."""
    doom = Doom(tmp_path / "doom")
    dropping = setting(MOST_DROPPED="1000000", RETAINED="100000", DOOM=str(doom.directory))
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, dropping) as scenario:
        program = started(scenario, cluster)
        (region,) = [found["region"] for found in status_of(scenario)["regions"]]
        doom.request(region, WRITTEN)
        wait_for(lambda: on_record(scenario.checkpoint), timeout_s=START_S, what="a drop")
        scenario.feeder.close()

        def all_seen() -> bool:
            assert program.exit_code is None, program.log_tail()
            seen = scenario.observer.total + len(on_record(scenario.checkpoint))
            return seen >= scenario.feeder.sent

        wait_for(all_seen, timeout_s=START_S, what="all that was not dropped")
        assert "region restarted" not in program.log()
        program.interrupt()
        program.await_exit(timeout_s=START_S)
        require_the_rest_once(scenario)


def status_of(scenario: Scenario) -> dict[str, Any]:
    shown = CliRunner().invoke(job_commands, ["status", str(scenario.checkpoint), "--json"])
    found: dict[str, Any] = json.loads(shown.output)["job"]
    return found


def test_ids_never_reused_a_host_that_dies_costs_its_tasks_alone(
    scenario: Scenario, cluster: SparkCluster
) -> None:
    """Spark runs them again on the other one, and the region does not notice."""
    program = started(scenario, cluster)
    await_open_transactions(scenario)
    cluster.kill_worker(0)
    sees_more(scenario)

    assert "region restarted" not in program.log()
    scenario.finish_running(program)
