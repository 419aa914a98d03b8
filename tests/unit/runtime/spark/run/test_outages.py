"""A file system that is away: what is said of it, and how long a region waits for it."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.coordinator.core.events import EndJob, RegionFailed, StopRequested
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.spark.run.outages import Outages
from sluice.runtime.storage.hadoop_errors import FailureKind, JavaException, failure_kind
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.core_driver import FAST, CoreDriver
from tests.kit.fakes import ManualClock

AWAY = StorageUnreachableError("could not write", {"uri": "hdfs://n:9000/lake"}, "Start it.")
NO_NODE = (
    "File /a could only be written to 0 of the 1 minReplication nodes. There are {running} "
    "datanode(s) running and {excluded} node(s) are excluded in this operation."
)


@pytest.mark.parametrize(
    ("trouble", "name", "text"),
    [
        (
            FailureKind.UNREACHABLE,
            "ConnectException",
            "Call From a to b failed: Connection refused",
        ),
        (
            FailureKind.UNREACHABLE,
            "SafeModeException",
            "Cannot create /x. Name node is in safe mode.",
        ),
        (FailureKind.UNREACHABLE, "StandbyException", "Operation category WRITE is not supported"),
        (FailureKind.UNREACHABLE, "RetriableException", "NameNode still not started"),
        (FailureKind.UNREACHABLE, "IOException", "NameNode still not started"),
        (
            FailureKind.UNREACHABLE,
            "SocketException",
            "Call From a to b failed on socket exception: x",
        ),
        (FailureKind.UNREACHABLE, "SocketException", "Network is unreachable"),
        (FailureKind.UNREACHABLE, "EOFException", "End of File Exception between local host is: a"),
        (FailureKind.UNREACHABLE, "IOException", NO_NODE.format(running=0, excluded="no")),
        (FailureKind.UNREACHABLE, "IOException", NO_NODE.format(running=1, excluded=1)),
        (
            FailureKind.UNREACHABLE,
            "IOException",
            "All datanodes [DatanodeInfo[1]] are bad. Aborting",
        ),
        (FailureKind.UNREACHABLE, "BlockMissingException", "Could not obtain block"),
        (FailureKind.FULL, "IOException", NO_NODE.format(running=1, excluded="no")),
        (
            FailureKind.UNREACHABLE,
            "KerberosAuthException",
            "failure to login: for principal: a@B javax.security.auth.login.LoginException: "
            "Connection refused",
        ),
        (
            FailureKind.UNREACHABLE,
            "SaslException",
            "GSS initiate failed [Caused by GSSException: No valid credentials provided "
            "(Mechanism level: Receive timed out)]",
        ),
        (FailureKind.UNREACHABLE, "InvalidToken", "Token has expired"),
        (
            FailureKind.LOGIN,
            "SaslException",
            "GSS initiate failed [Caused by GSSException: No valid credentials provided "
            "(Mechanism level: Failed to find any Kerberos tgt)]",
        ),
        (
            FailureKind.LOGIN,
            "IOException",
            "org.apache.hadoop.security.AccessControlException: Client cannot authenticate "
            "via:[TOKEN, KERBEROS]",
        ),
        (
            FailureKind.LOGIN,
            "LoginException",
            "javax.security.auth.login.LoginException: Unable to obtain password from user",
        ),
        (FailureKind.FULL, "IOException", "No space left on device"),
        (FailureKind.FULL, "DSQuotaExceededException", "The DiskSpace quota of /p is exceeded"),
        (FailureKind.FULL, "NSQuotaExceededException", "The NameSpace quota of /p is exceeded"),
        (FailureKind.FULL, "MaxDirectoryItemsExceededException", "limit=1048576 items=1048576"),
        (FailureKind.DENIED, "AccessControlException", "Permission denied: user=a, access=WRITE"),
        (FailureKind.UNSUPPORTED, "UnsupportedFileSystemException", "No FileSystem for scheme x"),
        (FailureKind.UNSUPPORTED, "PathComponentTooLongException", "limit=255 length=301"),
        (
            FailureKind.UNSUPPORTED,
            "RpcException",
            "RPC response has a length of 9 exceeds maximum data length",
        ),
        (FailureKind.OTHER, "IOException", "Stream is corrupted"),
    ],
)
def test_what_hadoop_says_reports_what_to_do(trouble: FailureKind, name: str, text: str) -> None:
    """Wait for what comes back, call a human for what does not; also after Spark's own error."""
    said = JavaException(name=name, text=f"java.io.{name}: {text}")
    assert failure_kind([said]) is trouble
    assert failure_kind([JavaException(name="SparkException", text="Job aborted"), said]) is trouble


@pytest.mark.parametrize(
    "said",
    [
        [
            JavaException(
                name="IllegalArgumentException",
                text="java.lang.IllegalArgumentException: java.net.UnknownHostException: nn-0",
            ),
            JavaException(name="UnknownHostException", text="java.net.UnknownHostException: nn-0"),
        ],
        # As PySpark has it, where a session is there.
        [
            JavaException(
                name="IllegalArgumentException", text="java.net.UnknownHostException: nn-0"
            )
        ],
    ],
)
def test_a_namenode_whose_name_is_gone_is_away(said: list[JavaException]) -> None:
    """Hadoop's client calls it a wrong argument when it is made; it comes back with the server."""
    assert failure_kind(said) is FailureKind.UNREACHABLE


def test_a_human_is_called_also_when_a_connection_was_lost_too() -> None:
    said = [
        JavaException(name="SocketTimeoutException", text="late"),
        JavaException(name="DSQuotaExceededException", text="exceeded"),
    ]
    assert failure_kind(said) is FailureKind.FULL


def test_an_outage_costs_no_tolerable_failure() -> None:
    """However often a region is tried again in it; other failures are counted all the same."""
    driver = CoreDriver(FAST)
    attempt_id = 0
    for _ in range(3 * FAST.tolerable_failures):
        driver.tell(RegionFailed(region="main", attempt_id=attempt_id, error=AWAY))
        attempt_id = driver.restart("main")
    assert not driver.seen(EndJob)
    for _ in range(FAST.tolerable_failures):
        driver.tell(RegionFailed(region="main", attempt_id=attempt_id, error=RuntimeError("bug")))
        attempt_id = driver.restart("main")
    assert not driver.seen(EndJob)
    driver.tell(RegionFailed(region="main", attempt_id=attempt_id, error=RuntimeError("bug")))
    assert driver.seen(EndJob)


def test_a_stop_does_not_wait_for_a_commit_that_has_long_been_unanswered() -> None:
    """Nothing is lost: the next start commits it. Ctrl-C in an outage ends the job at once."""
    driver = CoreDriver(FAST)
    driver.outcomes[b"main.0.1"] = CommitOutcome.PENDING
    driver.epoch(3)
    for _ in range(8):
        driver.tick(FAST.max_retry_s)
    assert not driver.core.is_idle
    driver.tell(StopRequested())
    driver.tick(FAST.max_retry_s)
    assert driver.core.is_idle


def test_a_stop_asks_again_what_has_not_been_answered_once() -> None:
    driver = CoreDriver(FAST)
    driver.outcomes[b"main.0.1"] = CommitOutcome.PENDING
    driver.epoch(3)
    driver.tell(StopRequested())
    driver.tick(FAST.retry_s)
    assert not driver.core.is_idle
    driver.outcomes.clear()
    driver.tick(FAST.max_retry_s)
    assert driver.core.last_committed == 1
    assert driver.core.is_idle


@dataclass
class Store:
    """A file system that is away for a time."""

    clock: ManualClock
    until_s: float
    looks_s: list[float] = field(default_factory=list)
    error: StorageError = AWAY

    def look(self) -> None:
        self.looks_s.append(self.clock() - 1_000)
        if self.clock() - 1_000 < self.until_s:
            raise self.error


def wait(outages: Outages, store: Store, *, until_s: float, committed: int = 0) -> float | None:
    """Ask ten times a second, as the job's thread does; when the region might begin."""
    while store.clock() - 1_000 < until_s:
        if outages.may_begin("main", committed=committed, probe=store.look):
            return store.clock() - 1_000
        store.clock.advance(0.1)
    return None


def test_a_region_begins_again_soon_after_its_file_system_is_back() -> None:
    """It is looked for at growing distances, at most five seconds apart."""
    clock = ManualClock()
    store = Store(clock, until_s=120.0)
    begun_s = wait(Outages(limit_s=900.0, clock=clock), store, until_s=200.0)
    assert begun_s is not None
    assert 120.0 <= begun_s < 125.2
    assert len(store.looks_s) < 35


def test_an_outage_longer_than_the_limit_ends_the_job_with_what_to_do() -> None:
    """The error names the file system and the option."""
    clock = ManualClock()
    store = Store(clock, until_s=1e9)
    with pytest.raises(StorageUnreachableError, match=r"outage_timeout_s") as raised:
        wait(Outages(limit_s=60.0, clock=clock), store, until_s=100.0)
    assert "hdfs://n:9000/lake" in str(raised.value)
    assert 60.0 <= clock() - 1_000 < 66.0


def test_a_store_that_answers_and_takes_no_epoch_is_not_tried_for_ever() -> None:
    """Each look is fine and each epoch fails: pauses grow, and the limit holds."""
    clock = ManualClock()
    store = Store(clock, until_s=0.0)
    outages = Outages(limit_s=60.0, clock=clock)
    begun: list[float | None] = []
    with pytest.raises(StorageUnreachableError, match="no epoch was committed"):
        begun.extend(iter(lambda: wait(outages, store, until_s=200.0), None))
    assert len(begun) < 20
    assert wait(outages, store, until_s=200.0, committed=1) is not None, "a commit ends an outage"


def test_a_refusal_is_met_by_the_region_and_counted_there() -> None:
    """A full disk answers: there is nothing to wait for."""
    clock = ManualClock()
    store = Store(clock, until_s=1e9, error=StorageError("no room", {}, "Make room."))
    assert wait(Outages(limit_s=60.0, clock=clock), store, until_s=1.0) == 0.0


def test_a_full_local_disk_says_where_there_is_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="there is no room to write") as raised:
        LocalFileSystem(tmp_path).write_temporary("file", b"rows")
    assert not isinstance(raised.value, StorageUnreachableError)
    assert str(tmp_path) in str(raised.value)
