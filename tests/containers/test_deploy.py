"""`docs/guide/deploy.md`: its service under a real systemd, and its image; with kills, and each
record once."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.containers.systemd_machine import SYSTEMD, SystemdMachine
from tests.kit.deploy_page import DEPLOY, ROOT, Copied, make_wheels, run_commands
from tests.kit.kafka.kafka_records import unique
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.extended]

SPARKS = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "pod",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_MEMORY": "256m",
    "SPARK_USER": "orders",
}
"""Variables of an executor's pod that Spark sets."""

INSTALL = "/opt/orders/bin/pip install --no-index --find-links wheels 'sluice-spark[spark,cli]'"

PACKAGES = [ROOT, *(Path(place) for place in sys.path if place.endswith("site-packages"))]
PLACES = [f"/srv/{number}" for number in range(len(PACKAGES))]
"""The machine sees this checkout and the packages of this test run there."""


@pytest.fixture
def copied(kafka: EmbeddedKafka) -> Copied:
    made = Copied(kafka.bootstrap)
    made.send()
    return made


class TestSystemd:
    @pytest.fixture
    def machine(self, engine: None) -> Iterator[SystemdMachine]:
        if not SYSTEMD.exists():
            pytest.skip("this host has no systemd")
        shared = dict(zip(PACKAGES, PLACES, strict=True))
        if not sys.base_prefix.startswith("/usr"):
            shared[Path(sys.base_prefix)] = sys.base_prefix
        with SystemdMachine(shared=shared) as made:
            yield made

    def test_a_service_resumes_after_a_kill_and_stops_in_order(
        self, machine: SystemdMachine, copied: Copied, tmp_path: Path
    ) -> None:
        machine.put(DEPLOY, "/root/deploy")
        machine.put(copied.write_settings(tmp_path / "orders.env"), "/root/deploy/orders.env")
        packages = r"printf '%s\n' " + f"{' '.join(PLACES)} >this_run.pth"
        run_commands(
            "Install the service",
            {INSTALL: f"cd /opt/orders/lib/python3*/site-packages; {packages}; cd /root"},
            directory=tmp_path,
            inside=machine.inside,
        )
        copied.require_once()
        first = machine.status("MainPID")

        run_commands("Kill the service", directory=tmp_path, inside=machine.inside)
        copied.send()
        wait_for(lambda: machine.status("MainPID") not in (first, "0"), what="a restart")
        copied.require_once()
        assert machine.status("NRestarts") == "1"
        told = run_commands("Stop the service", directory=tmp_path, inside=machine.inside)
        assert told.split() == ["Result=success", "ExecMainStatus=143"]
        assert machine.status("NRestarts") == "1"

    def test_failing_starts_end_at_the_limit_and_only_the_service_sees_its_login(
        self, machine: SystemdMachine
    ) -> None:
        """Without a program each start fails; the credential is one that the program can read."""
        unit = (DEPLOY / "orders.service").read_text("utf-8")
        for line, other in {
            "ExecStart=/opt/orders/bin/python /opt/orders/orders.py": (
                "ExecStart=/bin/bash -c 'cat $CREDENTIALS_DIRECTORY/kafka-login; exit 1'"
            ),
            "RestartSec=10": "RestartSec=0",
            "EnvironmentFile=/etc/orders/orders.env": "",
        }.items():
            assert line in unit
            unit = unit.replace(line, other)
        machine.run("useradd --system orders; install -d /etc/orders")
        machine.run("umask 077; echo kafka.sasl.password=secret >/etc/orders/kafka-login")
        machine.run(f"cat >/etc/systemd/system/orders.service <<'END'\n{unit}\nEND")
        machine.run("systemctl daemon-reload; systemctl start orders")
        wait_for(lambda: machine.status("ActiveState") == "failed", what="the limit")
        assert machine.status("NRestarts") == "10"
        assert machine.run("journalctl -u orders").count("kafka.sasl.password=secret") == 10


@pytest.fixture(scope="module")
def image(engine: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built as on the page, from wheels of this checkout; with the Python of this host."""
    directory = tmp_path_factory.mktemp("image")
    make_wheels(directory)
    subprocess.run(["cp", "-R", DEPLOY, directory / "deploy"], check=True)
    found = run_commands(
        "Build the image",
        {"docker build": "docker build --build-arg BASE=local/python:3"},
        directory=directory,
        environment={"DOCKER_BUILDKIT": "0"},
    )
    assert "Successfully tagged orders:latest" in found
    return "orders"


class TestContainer:
    @pytest.fixture
    def name(self, image: str) -> Iterator[str]:
        """A name for the container and its volume, which are removed."""
        made = unique("orders")
        yield made
        docker("rm", "--force", "--volumes", made)
        docker("volume", "rm", "--force", f"{made}-checkpoints")

    def test_a_container_resumes_after_a_kill_and_stops_in_order(
        self, name: str, copied: Copied, tmp_path: Path
    ) -> None:
        subprocess.run(["cp", "-R", DEPLOY, tmp_path / "deploy"], check=True)
        copied.write_settings(tmp_path / "deploy" / "orders.env")
        run_commands(
            "Run the container",
            {
                "--name orders": f"--name {name} --network host",
                "orders-checkpoints": f"{name}-checkpoints",
            },
            directory=tmp_path,
        )
        copied.require_once()
        assert docker("exec", name, "id", "-u") == "10001"
        pid = inspect(name, "State.Pid")
        mine = {"}}' orders": f"}}}}' {name}"}
        run_commands("Kill the container", mine, directory=tmp_path)
        copied.send()
        wait_for(lambda: inspect(name, "State.Pid") not in (pid, "0"), what="a restart")
        copied.require_once()
        assert inspect(name, "RestartCount") == "1"

        docker("kill", name)
        wait_for(lambda: inspect(name, "State.Running") == "false")
        copied.send()
        docker("start", name)
        copied.require_once()
        assert inspect(name, "State.OOMKilled") == "false"
        stop = mine | {"docker stop orders": f"docker stop {name}"}
        told = run_commands("Stop the container", stop, directory=tmp_path)
        assert told.split() == [name, "143"], docker("logs", "--tail", "20", name)

    def test_the_image_starts_sparks_executor_for_kubernetes(self, image: str) -> None:
        """With a read-only root file system. No driver answers, so the executor ends."""
        settings = [word for name, value in SPARKS.items() for word in ("--env", f"{name}={value}")]
        where = [
            "--rm",
            "--read-only",
            "--tmpfs",
            "/tmp:exec,mode=1777",
            "--cap-drop",
            "ALL",
            "--network",
            "none",
        ]
        done = subprocess.run(
            ["docker", "run", *where, *settings, image, "executor"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode not in (0, 126, 127)
        assert "KubernetesExecutorBackend" in done.stderr + done.stdout
        assert "ClassNotFoundException" not in done.stderr + done.stdout


def inspect(name: str, field: str) -> str:
    return docker("inspect", "--format", f"{{{{.{field}}}}}", name)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
