"""The chaos bed does to containers what it says."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.runtime.embedded.ports import free_ports
from tests.environment.cluster import BARE_IMAGE
from tests.environment.containers import Container, ContainerSpec, Engine
from tests.environment.host import Clock, Disk, Link, build_clock, require_tools
from tests.kit.waiting import wait_for

pytestmark = [
    pytest.mark.containers,
    pytest.mark.extended,
    pytest.mark.long,
    pytest.mark.slice,
    pytest.mark.timeout(2400),
]

_KILLED = 128 + 9
_TALKER = """
exec 3>/dev/udp/{gateway}/{port}
while sleep 0.1; do
  echo hello >&3
  printf '%(%s)T' -1 >/bed/clock.new && mv /bed/clock.new /bed/clock
  state=full; printf '%1000s' more 2>/dev/null >>/disk/file && state=room
  echo $state >/bed/disk-state
done
"""
_NOBODYS_PORT = 5000
_GIVES_AT, _TAKES_AT = 5000, 5001
_BULK = f"""
while :; do nc -l -p {_GIVES_AT} </bed/bulk; done &
while :; do nc -l -p {_TAKES_AT} </dev/null >>/bed/taken; done
"""
_BULK_BYTES = 100_000
_KBIT = 128
_LEAST_S = 0.8 * _BULK_BYTES * 8 / (_KBIT * 1000)


@pytest.fixture
def directory(engine: None, tmp_path: Path) -> Path:
    require_tools()
    build_clock(tmp_path / "clock.so")
    return tmp_path


@pytest.fixture
def disk(directory: Path) -> Iterator[Disk]:
    """A small one; of its last page, which is not free, the talker leaves little for long."""
    made = Disk(directory / "disk", size_mib=64, owner=0)
    yield made
    made.remove()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("0.0.0.0", free_ports(1)[0]))  # the network's own address comes later
        made.settimeout(1.0)
        yield made


@pytest.fixture
def clock(directory: Path) -> Clock:
    return Clock(directory / "talker.clock")


@pytest.fixture
def talker(
    directory: Path, disk: Disk, clock: Clock, listener: socket.socket
) -> Iterator[Container]:
    """It talks, looks at its clock and writes to its disk, ten times a second."""
    with Engine(subnet="10.231.78") as engine:
        script = _TALKER.format(gateway=engine.address(1), port=listener.getsockname()[1])
        made = engine.create(
            ContainerSpec(
                name="talker",
                image=BARE_IMAGE,
                number=11,
                command=["bash", "-c", script],
                environment={"LD_PRELOAD": "/bed/clock.so", "BED_CLOCK": "/bed/talker.clock"},
                mounts=[(str(directory), "/bed", "rw"), (str(disk.directory), "/disk", "rw")],
                user="0",
            )
        )
        made.start()
        wait_for(lambda: (directory / "disk-state").exists() and _hears(listener), what="its voice")
        yield made


def _hears(listener: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        listener.setblocking(False)
        while listener.recv(100):
            pass
    listener.settimeout(1.0)
    with contextlib.suppress(TimeoutError):
        return bool(listener.recv(100))
    return False


def _is_heard(talker: Container, voice: socket.socket) -> bool:
    """Whether what the host says gets into the container."""
    before = _arrived(talker)
    for _ in range(10):
        voice.sendto(b"hello\n", (talker.address, _NOBODYS_PORT))
        time.sleep(0.1)
        if _arrived(talker) > before:
            return True
    return False


def _arrived(container: Container) -> int:
    lines = Path(f"/proc/{container.pid}/net/snmp").read_text(encoding="utf-8").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Udp:"))
    return int(dict(zip(names, numbers, strict=True))["NoPorts"])


@pytest.mark.parametrize("incoming", [True, False])
@pytest.mark.parametrize("outgoing", [True, False])
def test_a_cut_drops_one_direction_or_both_until_it_is_fixed(
    talker: Container, listener: socket.socket, incoming: bool, outgoing: bool
) -> None:
    wait_for(lambda: _is_heard(talker, listener), what="the host's voice")
    link = Link(talker.pid)
    link.cut(incoming=incoming, outgoing=outgoing)
    if outgoing:
        assert not _hears(listener)
    else:
        wait_for(lambda: _hears(listener), what="its voice")
    assert _is_heard(talker, listener) is not incoming
    link.mend()
    wait_for(lambda: _hears(listener), what="its voice")
    wait_for(lambda: _is_heard(talker, listener), what="the host's voice")


class _Bulk:
    """A container that gives a hundred kilobytes at one port, and takes as many at another one."""

    def __init__(self, container: Container, taken: Path) -> None:
        self.link = Link(container.pid)
        self._address = container.address
        self._taken = taken

    def download_s(self) -> float:
        return _seconds(self._download)

    def upload_s(self) -> float:
        """The same until they were there, as the container's own file says."""
        return _seconds(self._upload)

    def _download(self) -> bool:
        size = 0
        with socket.create_connection((self._address, _GIVES_AT), timeout=60) as connection:
            while size < _BULK_BYTES and (part := connection.recv(1 << 16)):
                size += len(part)
        return size == _BULK_BYTES

    def _upload(self) -> bool:
        whole = self._taken.stat().st_size + _BULK_BYTES
        with socket.create_connection((self._address, _TAKES_AT), timeout=60) as connection:
            connection.sendall(bytes(_BULK_BYTES))
            connection.shutdown(socket.SHUT_WR)
            wait_for(lambda: self._taken.stat().st_size == whole, what="what was sent")
        return True


def _seconds(transfer: Callable[[], bool]) -> float:
    began_s = time.monotonic()
    try:
        is_whole = transfer()
    except OSError:
        return 0.0
    return time.monotonic() - began_s if is_whole else 0.0


@pytest.fixture
def bulk(directory: Path) -> Iterator[_Bulk]:
    (directory / "bulk").write_bytes(bytes(_BULK_BYTES))
    (directory / "taken").touch()
    with Engine(subnet="10.231.78") as engine:
        container = engine.create(
            ContainerSpec(
                name="bulk",
                image=BARE_IMAGE,
                number=11,
                command=["bash", "-c", _BULK],
                mounts=[(str(directory), "/bed", "rw")],
                user="0",
            )
        )
        container.start()
        made = _Bulk(container, directory / "taken")
        wait_for(made.download_s, what="a download")
        wait_for(made.upload_s, what="an upload")
        yield made


@pytest.mark.parametrize(
    ("incoming", "outgoing"),
    [(True, True), (True, False), (False, True)],
    ids=["both", "incoming", "outgoing"],
)
def test_a_slow_link_delays_and_goes_fast_again(
    bulk: _Bulk, incoming: bool, outgoing: bool
) -> None:
    """A hundred kilobytes take as long as the link's rate says, in the slow direction alone: what
    the other side says to them is short."""
    bulk.link.slow(incoming=incoming, outgoing=outgoing, kbit=_KBIT)
    for transfer_s, is_slow in ((bulk.upload_s, incoming), (bulk.download_s, outgoing)):
        if is_slow:
            assert wait_for(transfer_s, what="a slow transfer") > _LEAST_S
        else:
            _await_full_speed(transfer_s)
    bulk.link.hasten()
    _await_full_speed(bulk.upload_s)
    _await_full_speed(bulk.download_s)


def _await_full_speed(transfer_s: Callable[[], float]) -> None:
    wait_for(lambda: 0 < transfer_s() < _LEAST_S, what="a transfer at full speed")


def test_a_full_disk_takes_no_byte_until_it_is_cleared(
    talker: Container, directory: Path, disk: Disk
) -> None:
    def told() -> str:
        return (directory / "disk-state").read_text(encoding="utf-8").strip()

    wait_for(lambda: told() == "room", what="room")
    before = (disk.directory / "file").read_bytes()
    disk.fill()
    wait_for(lambda: told() == "full", what="a full disk")
    disk.clear()
    wait_for(lambda: told() == "room", what="room again")
    assert (disk.directory / "file").read_bytes().startswith(before)


def test_a_clock_jumps_and_comes_back(talker: Container, directory: Path, clock: Clock) -> None:
    def off_s() -> float:
        return int((directory / "clock").read_text(encoding="utf-8")) - time.time()

    for jump_s in (600, -600, 0):
        clock.jump(jump_s)
        wait_for(lambda jump_s=jump_s: abs(off_s() - jump_s) < 60, what=f"{jump_s}")  # type: ignore[misc]


def test_a_paused_container_is_silent_and_attempts(
    talker: Container, listener: socket.socket
) -> None:
    talker.pause()
    assert not _hears(listener)
    assert talker.runs
    talker.resume()
    wait_for(lambda: _hears(listener), what="its voice")


def test_a_killed_container_starts_again_on_its_disk(
    talker: Container, listener: socket.socket, disk: Disk
) -> None:
    first, before = talker.pid, (disk.directory / "file").read_bytes()
    talker.kill()
    assert not talker.runs
    assert talker.exit_code == _KILLED
    talker.start()
    assert talker.pid != first
    wait_for(lambda: _hears(listener), what="its voice")
    assert (disk.directory / "file").read_bytes().startswith(before)
