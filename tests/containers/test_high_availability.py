"""`docs/guide/high-availability.md`: its units under a real systemd, and its Compose file; with kills,
and each record once."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.containers.systemd_machine import SYSTEMD, SystemdMachine
from tests.containers.test_deploy import INSTALL, PACKAGES, PLACES
from tests.kit.deploy_page import (
    DEPLOY,
    HIGH_AVAILABILITY,
    ROOT,
    Copied,
    commands,
    make_wheels,
    run_commands,
)
from tests.kit.kafka.kafka_records import admin
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.extended, pytest.mark.timeout(2400)]

_COORDINATOR, _DRIVER = "orders-coordinator", "orders-driver"
_SETTINGS = {
    "DRIVER_HOST=host-a": "DRIVER_HOST=127.0.0.1",
    "CHECKPOINT=hdfs://namenode:8020/checkpoints/orders": "CHECKPOINT=/var/lib/orders/checkpoints",
    "HA=zookeeper://zookeeper-1:2181,zookeeper-2:2181,zookeeper-3:2181/sluice": "HA=lease",
}
_STOP = {"hdfs://namenode:8020/checkpoints/orders": "/var/lib/orders/checkpoints"}
_BROKERS = "127.0.0.1:19192,127.0.0.1:19292,127.0.0.1:19392"
_START_S = 900.0


@pytest.mark.long
class TestSystemd:
    """One host with both units. Another host could have the same."""

    @pytest.fixture
    def machine(self, engine: None) -> Iterator[SystemdMachine]:
        if not SYSTEMD.exists():
            pytest.skip("this host has no systemd")
        shared = dict(zip(PACKAGES, PLACES, strict=True))
        if not sys.base_prefix.startswith("/usr"):
            shared[Path(sys.base_prefix)] = sys.base_prefix
        with SystemdMachine(shared=shared) as made:
            yield made

    def test_a_killed_coordinator_comes_back_beside_its_driver_and_a_stop_ends_both(
        self, machine: SystemdMachine, kafka: EmbeddedKafka, tmp_path: Path
    ) -> None:
        copied = Copied(kafka.bootstrap)
        copied.send()
        machine.put(DEPLOY, "/root/deploy")
        machine.put(copied.write_settings(tmp_path / "orders.env"), "/root/deploy/orders.env")
        _write(tmp_path / "high-availability.env", _SETTINGS)
        machine.put(tmp_path / "high-availability.env", "/root/deploy/high-availability.env")
        _install(machine, tmp_path)
        _run_page("Install a coordinator and a driver", machine, tmp_path)
        copied.require_once()
        driver, first = (machine.status("MainPID", unit=u) for u in (_DRIVER, _COORDINATOR))

        machine.run(f"systemctl kill --kill-whom=main --signal=KILL {_COORDINATOR}")
        copied.send()
        wait_for(
            lambda: machine.status("MainPID", unit=_COORDINATOR) not in (first, "0"),
            what="another coordinator",
        )
        copied.require_once()
        assert machine.status("MainPID", unit=_DRIVER) == driver

        _run_page("Stop the job on all hosts", machine, tmp_path, _STOP)
        for unit, restarts in ((_DRIVER, "0"), (_COORDINATOR, "1")):
            wait_for(lambda: machine.status("ActiveState", unit=unit) == "inactive", what=unit)  # noqa: B023
            assert machine.status("ExecMainStatus", unit=unit) == "0"
            assert machine.status("NRestarts", unit=unit) == restarts


def _install(machine: SystemdMachine, directory: Path) -> None:
    """As on the other page, without its service, and with the packages of this test run."""
    packages = r"printf '%s\n' " + f"{' '.join(PLACES)} >this_run.pth"
    script = r"printf '#!/opt/orders/bin/python\nfrom sluice.__main__ import main\nmain()\n'"
    run_commands(
        "Install the service",
        {
            INSTALL: f"cd /opt/orders/lib/python3*/site-packages; {packages}; cd /root; "
            f"{script} >/opt/orders/bin/sluice; chmod 755 /opt/orders/bin/sluice",
            "systemctl enable --now orders": "true",
        },
        directory=directory,
        inside=machine.inside,
    )


def _run_page(
    title: str,
    machine: SystemdMachine,
    directory: Path,
    replaced: dict[str, str] | None = None,
) -> None:
    run_commands(
        title, replaced, directory=directory, inside=machine.inside, page=HIGH_AVAILABILITY
    )


def _write(place: Path, replaced: dict[str, str]) -> None:
    text = (DEPLOY / place.name).read_text("utf-8")
    for line, other in replaced.items():
        assert line in text
        text = text.replace(line, other)
    place.write_text(text)


@pytest.fixture(scope="module")
def compose(engine: None) -> Sequence[str]:
    """The command; skips without one, or without the images of ``docker/build.sh``."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]):
            done = subprocess.run([*words, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return words
    pytest.skip("this host has no Docker Compose")


@pytest.mark.long
class TestCompose:
    """Four processes of the job, three brokers, HDFS, and three ZooKeeper servers."""

    @pytest.fixture
    def directory(self, compose: Sequence[str], tmp_path: Path) -> Iterator[Path]:
        """With both Compose files and the image; the end removes all containers."""
        made = tmp_path / "compose"
        made.mkdir()
        make_wheels(made, extras="spark,cli,ha")
        for name in ("deploy", "docker"):
            shutil.copytree(ROOT / name, made / name)
        run_commands(
            "Build the image",
            {
                "docker build": "docker build --build-arg BASE=local/python:3 "
                "--build-arg EXTRAS=spark,cli,ha"
            },
            directory=made,
            environment={"DOCKER_BUILDKIT": "0"},
        )
        yield made
        _compose(compose, made, "down", "--volumes", "--timeout", "1")

    def test_the_job_outlives_its_leader_a_driver_and_a_server(
        self, compose: Sequence[str], directory: Path
    ) -> None:
        servers = [f"kafka-{number}" for number in (1, 2, 3)]
        _compose(compose, directory, "up", "--detach", *servers)
        wait_for(_brokers_answer, timeout_s=_START_S, what="brokers")
        copied = Copied(_BROKERS)
        copied.write_settings(directory / "deploy" / "orders.env")
        copied.send()
        replaced = {"docker compose": " ".join(compose)}
        title = "Start coordinators, drivers and servers"
        run_commands(title, replaced, directory=directory, page=HIGH_AVAILABILITY)
        copied.require_once()

        for service in (_leader(compose, directory), "driver-1", "zookeeper-2"):
            identity = _compose(compose, directory, "ps", "--quiet", service).strip()
            pid = json.loads(_run("docker", "inspect", identity))[0]["State"]["Pid"]
            _run("kill", "-KILL", str(pid))
            copied.send()
            copied.require_once()


def _brokers_answer() -> bool:
    try:
        return len(admin(_BROKERS).list_topics(timeout=5).brokers) == 3
    except KafkaException:
        return False


def _leader(compose: Sequence[str], directory: Path) -> str:
    """The coordinator whose log says that it leads."""
    for name in ("coordinator-1", "coordinator-2"):
        if "leading the job of" in _compose(compose, directory, "logs", name):
            return name
    raise AssertionError("no coordinator leads")


def _compose(compose: Sequence[str], directory: Path, *words: str) -> str:
    """With the files of the page."""
    command = commands(HIGH_AVAILABILITY)["Start coordinators, drivers and servers"]
    options = command.replace("\\\n", " ").split()[2:]
    return _run(*compose, *options[: options.index("up")], *words, directory=directory)


def _run(*command: str, directory: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout
