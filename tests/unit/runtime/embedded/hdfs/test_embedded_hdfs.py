"""What the embedded HDFS decides without starting anything."""

import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.embedded.hdfs.hdfs_site import HdfsPorts, is_formatted, render, site_properties
from sluice.runtime.errors import MissingRequirementError


def _site(**overrides: str) -> dict[str, str]:
    return site_properties(
        ports=HdfsPorts(rpc=1, web=2), data_dir=Path("/data"), overrides=overrides
    )


def test_every_socket_is_on_this_machine_alone() -> None:
    addresses = {name: value for name, value in _site().items() if name.endswith("address")}
    assert len(addresses) == 4
    assert all(value.startswith("127.0.0.1:") for value in addresses.values())
    assert addresses["dfs.namenode.http-address"] == "127.0.0.1:2"


def test_settings_win() -> None:
    assert _site(**{"dfs.replication": "3"})["dfs.replication"] == "3"


def test_site_file_is_xml_whatever_the_values_hold() -> None:
    root = ElementTree.fromstring(render({"hadoop.tmp.dir": "/a<b&c>"}))
    assert [(each.tag, each.text) for each in root[0]] == [
        ("name", "hadoop.tmp.dir"),
        ("value", "/a<b&c>"),
    ]


@pytest.mark.parametrize(
    ("files", "formatted"),
    [
        ([], False),
        (["VERSION"], False),
        (["VERSION", "fsimage.ckpt_0000000000000000000"], False),
        (["VERSION", "fsimage_0000000000000000000.md5"], False),
        (["VERSION", "fsimage_0000000000000000000", "fsimage_0000000000000000000.md5"], True),
    ],
)
def test_interrupted_format_is_done_again(
    tmp_path: Path, files: list[str], *, formatted: bool
) -> None:
    """The NameNode's first image is the last thing that a format writes."""
    current = tmp_path / "dfs" / "name" / "current"
    current.mkdir(parents=True)
    for name in files:
        (current / name).touch()
    assert is_formatted(tmp_path) is formatted


def test_addresses_are_known_after_the_first_start_only() -> None:
    with pytest.raises(MissingRequirementError, match="no ports before its first start"):
        _ = EmbeddedHdfs().uri


def test_occupied_port_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match=f"port {port} is occupied"):
            EmbeddedHdfs(data_dir=tmp_path / "new", port=port).start()
    assert not (tmp_path / "new").exists()
