"""What the embedded YARN decides without starting anything."""

import socket
from pathlib import Path

import pytest

from sluice.runtime.embedded.yarn.embedded_yarn import EmbeddedYarn
from sluice.runtime.embedded.yarn.yarn_site import YarnPorts, client_site, node_site
from sluice.runtime.errors import MissingRequirementError

_PORTS = YarnPorts(rpc=1, web=2, scheduler=3, tracker=4, admin=5)


def _site(**overrides: str) -> dict[str, str]:
    return client_site(ports=_PORTS, overrides=overrides)


def test_every_socket_is_on_this_machine_alone() -> None:
    site = node_site(_site(), number=2, directory=Path("/data"))
    addresses = {name: value for name, value in site.items() if name.endswith("address")}
    assert len(addresses) == 9
    assert all(value.startswith("127.0.0.") for value in addresses.values())
    assert addresses["yarn.resourcemanager.address"] == "127.0.0.1:1"


def test_nodes_of_one_machine_share_neither_host_nor_directory() -> None:
    first, second = (
        node_site(_site(), number=number, directory=Path(f"/data/{number}")) for number in (1, 2)
    )
    for name in ("hostname", "bind-host", "address", "local-dirs", "log-dirs"):
        assert first[f"yarn.nodemanager.{name}"] != second[f"yarn.nodemanager.{name}"]


def test_settings_win_for_the_manager_and_for_nodes() -> None:
    tries, memory = "yarn.resourcemanager.am.max-attempts", "yarn.nodemanager.resource.memory-mb"
    site = _site(**{tries: "3", memory: "512"})
    assert site[tries] == "3"
    assert node_site(site, number=1, directory=Path("/data"))[memory] == "512"


def test_addresses_are_known_after_the_first_start_only() -> None:
    with pytest.raises(MissingRequirementError, match="no ports before its first start"):
        _ = EmbeddedYarn().address


def test_occupied_port_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match=f"port {port} is occupied"):
            EmbeddedYarn(data_dir=tmp_path / "new", port=port).start()
    assert not (tmp_path / "new").exists()
