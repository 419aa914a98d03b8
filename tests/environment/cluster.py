"""The containers of the bed: three brokers, HDFS, a standalone Spark cluster and two drivers; for
some rounds also three ZooKeeper servers and two coordinators.

Kafka, HDFS and ZooKeeper run from the images of ``docker/build.sh``. Spark, the drivers and the
coordinators run from the base image of these. The bed mounts this machine's Python, Java and checkout read-only at the same paths,
so the containers run the present checkout and need no image of their own.
"""

import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pyspark
from confluent_kafka import KafkaException

from sluice.runtime.embedded.cache import cache_dir
from sluice.runtime.embedded.hdfs.embedded_hdfs import takes_files
from sluice.runtime.embedded.hdfs.hdfs_site import render
from sluice.runtime.embedded.java import find_java
from sluice.runtime.spark.fast_start.class_archive import find_archive
from tests.environment.containers import Container, ContainerSpec, Engine
from tests.environment.host import Clock, Disk, build_clock, require_tools
from tests.environment.plan import BROKERS, COORDINATORS, HDFS, HOSTS, WORKERS, ZOOKEEPERS
from tests.kit.kafka.kafka_records import admin
from tests.kit.spark_fixture import PATIENT, quick_python
from tests.kit.waiting import wait_for

KAFKA_IMAGE = "local/kafka:4.3.1"
HDFS_IMAGE = "local/hdfs:3.5.0"
ZOOKEEPER_IMAGE = "local/zookeeper:3.9.5"
BARE_IMAGE = "local/jre:17"
DRIVERS = HOSTS
INSIDE = "/bed"
"""The path of the run's directory in containers."""

_NUMBERS = {
    **{name: 11 + index for index, name in enumerate(BROKERS)},
    **{name: 21 + index for index, name in enumerate(HDFS)},
    "master": 31,
    **{name: 32 + index for index, name in enumerate(WORKERS)},
    **{name: 41 + index for index, name in enumerate(DRIVERS)},
    **{name: 51 + index for index, name in enumerate(COORDINATORS)},
    **{name: 61 + index for index, name in enumerate(ZOOKEEPERS)},
}
_START_S = 600.0
_NAME_NODE_PORT, _NAME_NODE_WEB = 9000, 9870
_MASTER_PORT = 7077
_ZOOKEEPER_PORT = 2181
_COORDINATOR_PORT = 7100
_TICK_MS = 1000  # the shortest session is two ticks
_HA_TIMEOUT_S = 6
_ANSWER_S = 2.0
_DISK_MIB = 512
# A DataNode refuses a block if its small disk may not have room for it. For minutes it also counts
# blocks of killed or partitioned writers: four blocks of 128 MiB, the default, fill its disk.
_BLOCK = 4 << 20
_APP_USER = 1000  # of both images
_LOST_AFTER_S = 10

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SPARK = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # Two of four cores: the other two are for a second driver, while the first one is frozen.
    "spark.cores.max": "2",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": f"{_LOST_AFTER_S}s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": f"{_LOST_AFTER_S}s",
    "spark.driver.bindAddress": "0.0.0.0",
    "spark.executor.extraJavaOptions": f"'{_JVM}'",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # the bar would break lines of the log
    "spark.hadoop.dfs.blocksize": str(_BLOCK),
    "spark.hadoop.parquet.block.size": str(_BLOCK),  # Parquet requests blocks of this size,
    "spark.hadoop.parquet.writer.max-padding": "0",  # and would fill a short block with zeros
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.mode": "FAIR",
}


class Bed:
    """Starts, finds and removes all containers of one run. Used by one thread.

    The context starts the containers. Its end removes all but the run's directory.

    Args:
        directory: must not exist; gets logs, clocks and the drivers' files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = contextlib.ExitStack()
        self._containers: dict[str, Container] = {}
        self.disks: dict[str, Disk] = {}
        self.clocks: dict[str, Clock] = {}
        self._engine = Engine()
        self._admin = admin(self.bootstrap)

    def __enter__(self) -> Self:
        require_tools()
        self.directory.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            build_clock(self.directory / "clock.so")
            for name in _NUMBERS:
                self.clocks[name] = Clock(self.directory / f"{name}.clock")
            for name in (*BROKERS, "datanode"):
                disk = Disk(self.directory / "disks" / name, size_mib=_DISK_MIB, owner=_APP_USER)
                self.disks[name] = disk
                stack.callback(disk.remove)
            self._engine = stack.enter_context(self._engine)
            stack.callback(self._keep_logs)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        """All brokers."""
        return ",".join(f"{self._engine.address(_NUMBERS[name])}:9092" for name in BROKERS)

    @property
    def hdfs_uri(self) -> str:
        """``hdfs://host:port``, the same inside and outside."""
        return f"hdfs://{self._engine.address(_NUMBERS['namenode'])}:{_NAME_NODE_PORT}"

    @property
    def containers(self) -> Mapping[str, Container]:
        """All containers by name; those of a job only while it runs."""
        return self._containers

    def address(self, name: str) -> str:
        """The bootstrap servers in the bed's network."""
        return self._engine.address(_NUMBERS[name])

    def answers(self) -> bool:
        """Whether all brokers have joined the cluster, HDFS accepts files, and each ZooKeeper server
        that there is serves clients."""
        try:
            brokers = self._admin.list_topics(timeout=2).brokers
        except KafkaException:
            return False
        return (
            len(brokers) == len(BROKERS)
            and takes_files(self.address("namenode"), _NAME_NODE_WEB)
            and all(_serves(self.address(name)) for name in ZOOKEEPERS if name in self._containers)
        )

    def make_driver(self, name: str, arguments: Sequence[str]) -> Container:
        """A new container, not started, for `tests.environment.job`. Removes the one of an earlier job."""
        return self._make_program(
            name, "tests.environment.job", arguments, self._driver_environment(name)
        )

    def make_coordinator(self, name: str, checkpoint: str, *, ha: str) -> Container:
        """A new container, not started, for ``sluice coordinator start``.

        Args:
            checkpoint: directory of the job.
            ha: ``zookeeper`` or ``lease``.
        """
        nodes = ",".join(f"{self.address(each)}:{_ZOOKEEPER_PORT}" for each in ZOOKEEPERS)
        address = self.address(name)
        # A coordinator that starts again has the address of the last one, as in `deploy`.
        words = ["coordinator", "start", "--checkpoint", checkpoint, "--host", address]
        words += ["--port", str(_COORDINATOR_PORT)]
        words += ["--hosts", str(len(HOSTS)), "--ha-timeout", str(_HA_TIMEOUT_S)]
        words += ["--ha", f"zookeeper://{nodes}/sluice" if ha == "zookeeper" else ha]
        conf = self.directory / "hadoop"
        conf.mkdir(exist_ok=True)
        (conf / "hdfs-site.xml").write_text(render({"dfs.blocksize": str(_BLOCK)}), "utf-8")
        environment = {**_spark(address), "HADOOP_CONF_DIR": f"{INSIDE}/{conf.name}"}
        return self._make_program(name, "sluice", words, environment)

    def start_zookeepers(self) -> None:
        """Start an ensemble without data, and wait until each server serves clients."""
        servers = " ".join(
            f"server.{number}={name}:2888:3888;{_ZOOKEEPER_PORT}"
            for number, name in enumerate(ZOOKEEPERS, start=1)
        )
        for number, name in enumerate(ZOOKEEPERS, start=1):
            environment = {
                "ZOO_MY_ID": str(number),
                "ZOO_SERVERS": servers,
                "ZOO_TICK_TIME": str(_TICK_MS),
                "SERVER_JVMFLAGS": "-Xmx96m",
            }
            self._add(name, ZOOKEEPER_IMAGE, environment=environment, mounts=[])
        with ThreadPoolExecutor(len(ZOOKEEPERS)) as pool:
            list(pool.map(Container.start, (self._containers[name] for name in ZOOKEEPERS)))
        wait_for(self.answers, timeout_s=_START_S, what="ZooKeeper", poll_s=0.2)

    def remove_programs(self) -> None:
        """Kill and remove what runs for one job alone."""
        for name in (*DRIVERS, *COORDINATORS, *ZOOKEEPERS):
            if name in self._containers:
                self._containers.pop(name).remove()

    @property
    def master_url(self) -> str:
        """The URL of the Spark cluster."""
        return f"spark://{self.address('master')}:{_MASTER_PORT}"

    def _start(self) -> None:
        for name, number in _NUMBERS.items():
            self._engine.name(name, number)
        for number, name in enumerate(BROKERS, start=1):
            mount = (str(self.disks[name].directory), "/var/lib/kafka", "rw")
            self._add(name, KAFKA_IMAGE, environment=_broker(number, self), mounts=[mount])
        disk = (str(self.disks["datanode"].directory), "/tmp/hdfs", "rw")
        for name in HDFS:
            self._add(
                name,
                HDFS_IMAGE,
                command=["hdfs", name],
                environment=_hdfs(name, self),
                mounts=[disk] if name == "datanode" else [],
            )
        (self.directory / "master").mkdir()
        for name in ("master", *WORKERS):
            command = ["bash", "-c", f"{_spark_command(name, self)} >>{INSIDE}/{name}.log 2>&1"]
            self._add(
                name,
                BARE_IMAGE,
                command=command,
                environment=_spark(self.address(name)),
                mounts=_host_mounts(),
                user="0",
            )
        with ThreadPoolExecutor(len(self._containers)) as pool:
            list(pool.map(Container.start, self._containers.values()))
        wait_for(self.answers, timeout_s=_START_S, what="brokers and HDFS", poll_s=0.2)

    def _make_program(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Container:
        if name in self._containers:
            self._containers.pop(name).remove()
        made = self._make(
            name,
            BARE_IMAGE,
            command=["bash", "-c", _program_script(name, module), name, *arguments],
            environment=environment,
            mounts=_host_mounts(),
            user="0",
        )
        self._containers[name] = made
        return made

    def _add(self, name: str, image: str, **words: object) -> None:
        self._containers[name] = self._make(name, image, **words)  # type: ignore[arg-type]

    def _make(
        self,
        name: str,
        image: str,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str],
        mounts: Sequence[tuple[str, str, str]],
        user: str | None = None,
    ) -> Container:
        clock = {"LD_PRELOAD": f"{INSIDE}/clock.so", "BED_CLOCK": f"{INSIDE}/{name}.clock"}
        return self._engine.create(
            ContainerSpec(
                name=name,
                image=image,
                number=_NUMBERS[name],
                command=command,
                environment={**environment, **clock},
                mounts=[*mounts, (str(self.directory), INSIDE, "rw")],
                user=user,
                memory="2g",
            )
        )

    def _driver_environment(self, name: str) -> dict[str, str]:
        address = self.address(name)
        settings = {**_SPARK, **PATIENT, "spark.driver.host": address}
        words = [f"--conf {key}={value}" for key, value in settings.items()]
        archive = find_archive()
        shared = f" -XX:SharedArchiveFile={archive}" if archive else ""
        words += ["--driver-memory 512m", f"--driver-java-options '{_JVM}{shared}'"]
        return {
            **_spark(address),
            "PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"]),
            "BED_HOST": address,
        }

    def _keep_logs(self) -> None:
        for name, container in self._containers.items():
            (self.directory / f"{name}.out").write_text(container.logs(), encoding="utf-8")


def _host_mounts() -> list[tuple[str, str, str]]:
    """Directories of this machine that Python, Java and the checkout need."""
    java = find_java().executable.resolve().parents[1]
    checkout = Path(__file__).parents[2]
    roots = [Path(name) for name in ("/usr", "/bin", "/lib", "/lib64")]
    homes = [Path(sys.base_prefix), Path(sys.prefix).resolve(), java, checkout]
    homes += [Path(pyspark.__file__).parent, cache_dir()]
    # Debian keeps the configuration of a JDK in /etc.
    homes += [found.resolve().parent for found in (java / "conf").rglob("*.*")]
    homes += [found.resolve().parent for found in (java / "lib" / "security").glob("*")]
    # A directory below a mounted one needs no mount of its own.
    wanted = sorted({path.resolve() for path in homes if path.exists()})
    mounts = {str(path): str(path) for path in wanted if not path.is_relative_to("/usr")}
    mounts |= {str(path.resolve()): str(path) for path in roots[1:] if path.exists()}
    return [("/usr", "/usr", "ro"), *((out, within, "ro") for out, within in mounts.items())]


def _program_script(name: str, module: str) -> str:
    """A shell command: a program cannot kill itself as the first process of a container."""
    run = f"{sys.executable} -u -m {module}"
    return (
        "cd /tmp; "
        f"export SLUICE_FAILPOINTS=$(cat {INSIDE}/{name}.failpoints 2>/dev/null); "
        f"rm -f {INSIDE}/{name}.failpoints; "
        f'{run} "$@" >>{INSIDE}/{name}.log 2>&1 & child=$!; '
        f"trap 'kill -TERM $child' TERM; "
        f"wait $child; code=$?; "
        f"while kill -0 $child 2>/dev/null; do wait $child; code=$?; done; exit $code"
    )


def _serves(address: str) -> bool:
    """Whether this ZooKeeper server has a quorum."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, _ZOOKEEPER_PORT), timeout=_ANSWER_S) as connection,
    ):
        connection.sendall(b"srvr")
        while piece := connection.recv(4096):
            answer += piece
    return b"Mode:" in answer


def _broker(number: int, bed: Bed) -> dict[str, str]:
    voters = ",".join(f"{n}@kafka-{n}:9094" for n in range(1, len(BROKERS) + 1))
    address = bed.address(f"kafka-{number}")
    return {
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
        "KAFKA_HEAP_OPTS": "-Xms256m -Xmx256m -XX:TieredStopAtLevel=1",
        "KAFKA_NODE_ID": str(number),
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAIN",
        "KAFKA_LISTENERS": "PLAIN://:9092,CONTROLLER://:9094",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAIN://{address}:9092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
        "KAFKA_LOG_SEGMENT_BYTES": str(16 << 20),
        "KAFKA_LOG_CLEANER_DEDUPE_BUFFER_SIZE": str(8 << 20),
        "KAFKA_DEFAULT_REPLICATION_FACTOR": "3",
        "KAFKA_MIN_INSYNC_REPLICAS": "2",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "3",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "3",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "2",
        "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
        "KAFKA_BROKER_SESSION_TIMEOUT_MS": "3000",
        "KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "500",
        "KAFKA_REPLICA_LAG_TIME_MAX_MS": "5000",
    }


def _hdfs(role: str, bed: Bed) -> dict[str, str]:
    both = {
        "HADOOP_HEAPSIZE_MAX": "192",
        "CORE-SITE.XML_fs.defaultFS": bed.hdfs_uri,
        "CORE-SITE.XML_hadoop.tmp.dir": "/tmp/hdfs",
        "HDFS-SITE.XML_dfs.replication": "1",
        "HDFS-SITE.XML_dfs.permissions.enabled": "false",
    }
    if role == "datanode":
        # The default reserves a gigabyte, which counts the disk as full.
        kept = "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space"
        return {
            **both,
            "HDFS-SITE.XML_dfs.datanode.hostname": bed.address(role),
            f"HDFS-SITE.XML_{kept}": "0",
        }
    return {
        **both,
        "HDFS-SITE.XML_dfs.blocksize": str(_BLOCK),  # for clients that use the NameNode's default
        "ENSURE_NAMENODE_DIR": "/tmp/hdfs/dfs/name",
        "HDFS-SITE.XML_dfs.namenode.rpc-bind-host": "0.0.0.0",
        "HDFS-SITE.XML_dfs.namenode.safemode.extension": "0",
        "HDFS-SITE.XML_dfs.namenode.datanode.registration.ip-hostname-check": "false",
    }


def _spark(address: str) -> dict[str, str]:
    home = Path(pyspark.__file__).parent
    (core,) = home.glob("jars/spark-core_*.jar")
    java = find_java().executable.resolve().parents[1]
    return {
        "PATH": f"{java}/bin:/usr/bin:/bin",
        "JAVA_HOME": str(java),
        "HOME": "/tmp",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": address,
        "SPARK_SCALA_VERSION": core.name.partition("_")[2].partition("-")[0],
        "PYTHONPATH": quick_python(),
        "PYSPARK_PYTHON": sys.executable,
    }


def _spark_command(name: str, bed: Bed) -> str:
    java = "exec java -Xmx192m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    settings = [
        "-Dspark.master.rest.enabled=false",
        # A restarted master recovers its workers and the application.
        "-Dspark.deploy.recoveryMode=FILESYSTEM",
        f"-Dspark.deploy.recoveryDirectory={INSIDE}/master",
        # The master replaces every killed executor, without a limit.
        "-Dspark.deploy.maxExecutorRetries=-1",
        "-Dspark.worker.timeout=15",
    ]
    place = f"--host {bed.address(name)}"
    if name == "master":
        main = f"org.apache.spark.deploy.master.Master {place} --port {_MASTER_PORT}"
    else:
        worker = "org.apache.spark.deploy.worker.Worker"
        main = f"{worker} {place} --cores 2 --memory 1g --work-dir /tmp/work {bed.master_url}"
    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    return f"{java} {' '.join(settings)} -cp '{jars}' {main} --webui-port 8080"
