"""Which objects the deletion of a directory deletes."""

from collections.abc import Iterator

import pytest

from sluice.runtime.storage.objects import object_file_system
from sluice.runtime.storage.objects.object_client import FoundObject
from sluice.runtime.storage.objects.object_location import object_location

_S3 = "s3://bucket/job"
_AZURE = "abfss://lake@account.dfs.core.windows.net/job"


class _Client:
    def __init__(self, *keys: str) -> None:
        self._keys = keys
        self.deleted: list[str] = []

    def list_below(self, key: str) -> Iterator[FoundObject]:
        return (FoundObject(each, 1, 1) for each in self._keys if each.startswith(f"{key}/"))

    def delete(self, keys: list[str]) -> None:
        self.deleted += keys

    def delete_directory(self, key: str) -> None:
        self.deleted.append(f"{key}/")


def _deleted(uri: str, path: str, *keys: str) -> list[str]:
    client = _Client(*keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_file_system, "ObjectClient", lambda _: client)
        fs = object_file_system.ObjectFileSystem(object_location(uri, environment={}))
    fs.delete(path)
    return client.deleted


def test_a_record_goes_first() -> None:
    keys = ["job/7/_committed", "job/7/_metadata", "job/7/detail"]
    assert _deleted(_S3, "7", *keys) == ["job/7/_metadata", "job/7/_committed", "job/7/detail"]
    assert _deleted(_S3, "7", "job/7/_metadata") == ["job/7/_metadata"]


def test_an_object_is_deleted_by_its_name() -> None:
    assert _deleted(_S3, "_job") == _deleted(_AZURE, "_job") == ["job/_job"]


@pytest.mark.parametrize("keys", [("job/7/_metadata",), ("job/7/_committed", "job/7/_metadata")])
def test_on_azure_the_directory_goes_last(keys: tuple[str, ...]) -> None:
    """An account with a hierarchical namespace keeps it, and each listing would name it for ever:
    a coordinator would read each slot that was ever retired."""
    assert _deleted(_AZURE, "7", *keys)[-1] == "job/7/"
