"""Files in an encryption zone of HDFS: tasks write over WebHDFS, the driver renames and reads.

The keys lie in a key store that all servers read, or behind a key management server (KMS).
"""

import getpass
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import StorageError
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.kms import Kms

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_ROWS = b"rows that nobody may read on the disk"


@pytest.fixture(scope="module", params=["store", pytest.param("kms", marks=pytest.mark.long)])
def keys(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the keys are."""
    directory = tmp_path_factory.mktemp("keys")
    if request.param == "store":
        yield f"jceks://file{directory}/keys.jceks"
        return
    with Kms(directory) as kms:
        yield kms.provider


@pytest.fixture(scope="module")
def zoned(keys: str, hadoop_client: Any) -> Iterator[EmbeddedHdfs]:
    """An HDFS whose directory ``/zone`` is encrypted."""
    provider = {"hadoop.security.key.provider.path": keys}
    java, hadoop = hadoop_client.java, hadoop_client.org.apache.hadoop
    conf = hadoop.conf.Configuration()
    conf.set(*next(iter(provider.items())))
    store = hadoop.crypto.key.KeyProviderFactory.get(java.net.URI(keys), conf)
    store.createKey("key", hadoop.crypto.key.KeyProvider.Options(conf))
    store.flush()
    with EmbeddedHdfs(settings=provider) as started:
        hadoop.hdfs.HdfsConfiguration.init()
        open_file_system(started.uri, hadoop_client).make_directories("zone")
        admin = hadoop.hdfs.client.HdfsAdmin(java.net.URI(started.uri), conf)
        flags = java.util.EnumSet.of(hadoop.hdfs.client.CreateEncryptionZoneFlag.NO_TRASH)
        admin.createEncryptionZone(hadoop.fs.Path("/zone"), "key", flags)
        yield started


def _files(hdfs: EmbeddedHdfs) -> WebHdfsTaskFiles:
    address = hdfs.web_uri.removeprefix("http://")
    return WebHdfsTaskFiles(address=WebHdfsAddress(name_nodes=(address,), user=getpass.getuser()))


def test_tasks_and_driver_write_read_and_rename_in_a_zone(
    zoned: EmbeddedHdfs, hadoop_client: Any
) -> None:
    """The DataNode encrypts what a task sends: the blocks hold other bytes."""
    name = uuid.uuid4().hex
    files = _files(zoned)
    file = files.create(f"/zone/{name}/staged")
    file.stream.write(_ROWS)
    assert file.finish() == len(_ROWS)
    assert files.read(f"/zone/{name}/staged", 0, 100) == _ROWS
    fs = open_file_system(f"{zoned.uri}/zone/{name}", hadoop_client)
    assert fs.move("staged", "published")
    assert fs.read("published") == _ROWS
    raw = open_file_system(f"{zoned.uri}/.reserved/raw/zone/{name}", hadoop_client)
    stored = raw.read("published")
    assert stored is not None
    assert stored != _ROWS


def test_a_checkpoint_directory_may_lie_in_a_zone(zoned: EmbeddedHdfs, hadoop_client: Any) -> None:
    fs = open_file_system(f"{zoned.uri}/zone/{uuid.uuid4().hex}", hadoop_client)
    store = CheckpointStore(fs)
    assert store.publish(record(0), timeout_s=300) is PublishOutcome.OURS
    assert store.publish(record(0), timeout_s=300) is PublishOutcome.OURS
    assert store.slots() == [0]


def test_no_rename_leaves_a_zone(zoned: EmbeddedHdfs, hadoop_client: Any) -> None:
    """So target and staging lie in one zone; the start of a sink tries a rename."""
    fs = open_file_system(zoned.uri, hadoop_client)
    path = f"zone/{uuid.uuid4().hex}"
    fs.write_temporary(path, _ROWS)
    with pytest.raises(StorageError, match="encryption zone"):
        fs.move(path, "outside")
    assert fs.read(path) == _ROWS
