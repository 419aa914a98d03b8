"""What a checkpoint says of Spark's state, from the files that Spark writes beside it."""

import json
from collections.abc import Mapping, Sequence

import pytest

from sluice.runtime.spark.microbatch.spark_state import StateDescriber
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

_STORES = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 3}]


def _metadata(version: int, name: str, stores: Sequence[Mapping[str, object]] = _STORES) -> bytes:
    said = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": stores}
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
def test_operators_are_reported_whatever_version_their_metadata_has(
    files: dict[str, bytes], named: str
) -> None:
    disk = Disk()
    disk.files |= {
        f"spark/main/state-0/state/0/_metadata/{name}": data for name, data in files.items()
    }
    told = StateDescriber(FakeFileSystem(disk), "spark/main/state-0").after(4)
    assert told.operators == ((0, named),)
    assert (told.state_version, told.state_partitions) == (5, 3)


def _struct(name: str) -> dict[str, object]:
    return {"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True}]}


def _schema_file(*names: str) -> bytes:
    """Structs between bytes that differ from version to version."""
    structs = (json.dumps(_struct(name), separators=(",", ":")).encode() for name in names)
    return b"\x00\x02v2" + b"\x00\x00\x00\x01\x00\xa2".join([b"", *structs])


def test_schemas_are_reported_with_the_store_of_the_operator_that_they_are_of() -> None:
    """Keys stand in front of values; a store without a schema has none."""
    join = [{"storeName": name, "numPartitions": 2} for name in ("left", "right", "empty")]
    below = "spark/main/state-0/state"
    disk = Disk()
    disk.files |= {
        f"{below}/0/0/_metadata/schema": _schema_file("key", "value"),
        f"{below}/0/_metadata/metadata": _metadata(1, "stateStoreSave"),
        f"{below}/1/0/1.changelog": b"",
        f"{below}/2/_metadata/metadata": _metadata(1, "symmetricHashJoin", join),
        f"{below}/2/0/left/_metadata/schema": _schema_file("at", "row"),
        f"{below}/2/0/empty/_metadata/schema": b"",
    }
    told = StateDescriber(FakeFileSystem(disk), "spark/main/state-0").after(4)
    assert told.operators == ((0, "stateStoreSave"), (2, "symmetricHashJoin"))
    assert json.loads(told.state_schema) == [
        {"operator": 0, "store": "default", "schemas": [_struct("key"), _struct("value")]},
        {"operator": 2, "store": "left", "schemas": [_struct("at"), _struct("row")]},
        {"operator": 2, "store": "empty", "schemas": []},
    ]
    assert json.loads(told.key_schema) == [
        {"operator": 0, "store": "default", "schemas": [_struct("key")]},
        {"operator": 2, "store": "left", "schemas": [_struct("at")]},
    ]
