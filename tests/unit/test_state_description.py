"""What a checkpoint says of Spark's state, from the files that Spark writes beside it."""

import json

import pytest

from runtime.spark.state import StateDescriber
from tests.fake_file_system import Disk, FakeFileSystem

_STORES = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 3}]


def _metadata(version: int, name: str) -> bytes:
    said = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": _STORES}
    return f"v{version}\n{json.dumps(said)}".encode()


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"metadata": _metadata(1, "stateStoreSave")}, "stateStoreSave"),
        (
            {
                "v2/9": _metadata(2, "older"),
                "v2/10": _metadata(2, "transformWithStateInPySparkExec"),
                "v2/.10.crc": b"\x00",
            },
            "transformWithStateInPySparkExec",
        ),
    ],
)
def test_operators_are_told_whatever_version_their_metadata_has(
    files: dict[str, bytes], named: str
) -> None:
    """A state whose operators nobody tells looks like one that there is not."""
    disk = Disk()
    disk.files |= {
        f"spark/main/state-0/state/0/_metadata/{name}": data for name, data in files.items()
    }
    told = StateDescriber(FakeFileSystem(disk), "spark/main/state-0").after(4)
    assert told.operators == ((0, named),)
    assert (told.state_version, told.state_partitions) == (5, 3)
