"""Spark's files of a stateful query, as Spark writes them, and a reader that loads them as Spark.

A state is the list of the batches that made it. A snapshot that is uploaded late, files of attempts
that failed, and Spark's own deletes are all there.
"""

import io
import json
import uuid
import zipfile
from collections.abc import Mapping, Sequence

from sluice.runtime.model.checkpoint_record import RegionRecord, StateSnapshot
from sluice.runtime.storage.file_system import FileSystem

Lineage = list[tuple[int, str]]


class SparkState:
    """The writer: one query with one stateful operator.

    Args:
        location: Spark's checkpoint location in ``fs``.
        stores: names; ``default`` has no directory of its own.
    """

    def __init__(
        self,
        fs: FileSystem,
        location: str = "spark/r0/state-0",
        *,
        partitions: int = 2,
        stores: Sequence[str] = ("default",),
    ) -> None:
        self._fs = fs
        self._location = location
        self._keys = [(partition, store) for partition in range(partitions) for store in stores]
        self._partitions = partitions
        self._stores = stores
        self._lineage: dict[tuple[int, str], Lineage] = {key: [] for key in self._keys}
        self._base: dict[tuple[int, str], int] = dict.fromkeys(self._keys, 0)
        self.next_batch = 0
        self._write("metadata", '{"id":"99963b27"}')
        self._write("state/0/_metadata/metadata", "v1\n{}")
        for store in stores:
            self._write(f"{self._store(0, store)}/_metadata/schema", f"schema of {store}")

    def run_batch(self, *, foreign: bool = False, commit: bool = True) -> int:
        """Run a batch; ``foreign``: an attempt that failed wrote its files, too."""
        batch = self.next_batch
        self._write(f"offsets/{batch}", f"v2\n{batch}")
        for key in self._keys:
            if foreign:
                self._write_change(key, batch, str(uuid.uuid4()))
            own = str(uuid.uuid4())
            self._write_change(key, batch, own)
            self._lineage[key].append((batch + 1, own))
        if commit:
            self.commit(batch)
        self.next_batch = batch + 1
        return batch

    def commit(self, batch: int) -> None:
        """Spark's commit log entry of a batch."""
        ids = [
            [dict(self._lineage[partition, store])[batch + 1] for store in self._stores]
            for partition in range(self._partitions)
        ]
        entry = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": ids}})
        self._write(f"commits/{batch}", f"v2\n{entry}")

    def upload_snapshot(self, version: int, *, foreign: bool = False) -> None:
        """What Spark's maintenance does some time after the batch before ``version``."""
        for key in self._keys:
            own = dict(self._lineage[key])[version]
            self._upload(key, version, str(uuid.uuid4()) if foreign else own)
            if not foreign:
                self._base[key] = max(self._base[key], version)

    def purge(self, *, logs: int, state: bool) -> None:
        """Delete all but the newest ``logs`` entries of the logs, and state that nothing needs to
        load a version after them."""
        first = self.next_batch - logs
        for batch in range(max(first, 0)):
            for name in ("offsets", "commits"):
                self._fs.delete(f"{self._location}/{name}/{batch}")
        for key in self._keys if state else ():
            if self._base[key] <= first:
                self._purge_versions(key, below=self._base[key])

    def record(self, batch: int, *, region: str = "r0") -> RegionRecord:
        """The region's record in the checkpoint of a batch."""
        state = StateSnapshot(
            provider="RocksDB",
            checkpoint_format_version=2,
            state_version=batch + 1,
            state_partitions=self._partitions,
            operators=((0, "stateStoreSave"),),
            location=f"{self._location}/state",
        )
        return RegionRecord(region=region, attempt_id=0, batch_id=batch, state=state)

    def _purge_versions(self, key: tuple[int, str], *, below: int) -> None:
        for entry in self._fs.entries(self._at(self._store(*key))):
            if not entry.is_directory and int(entry.name.partition("_")[0]) < below:
                self._fs.delete(self._at(f"{self._store(*key)}/{entry.name}"))

    def _write_change(self, key: tuple[int, str], batch: int, own: str) -> None:
        base = self._base[key]
        lineage = [each for each in self._lineage[key] if each[0] >= base and each[0] <= batch]
        change = {"lineage": lineage, "batch": batch if own not in ("", None) else None}
        path = f"{self._store(*key)}/{batch + 1}_{own}.changelog"
        self._write(path, json.dumps(change))
        self._write(f"{path}.crc", f"crc of {own}")

    def _upload(self, key: tuple[int, str], version: int, own: str) -> None:
        directory = self._store(*key)
        sst = f"{version:06d}-{uuid.uuid4()}.sst"
        self._write(f"{directory}/SSTs/{sst}", json.dumps(list(range(version))))
        listed = {"sstFiles": [{"dfsSstFileName": sst, "localFileName": f"{version:06d}.sst"}]}
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("metadata", f"v1\n{json.dumps(listed)}")
        self._fs.write_temporary(self._at(f"{directory}/{version}_{own}.zip"), data.getvalue())

    def _store(self, partition: int, store: str) -> str:
        return f"state/0/{partition}" + ("" if store == "default" else f"/{store}")

    def _write(self, path: str, text: str) -> None:
        self._fs.write_temporary(self._at(path), text.encode())

    def _at(self, path: str) -> str:
        return f"{self._location}/{path}"


def load_state(
    fs: FileSystem,
    batch: int,
    location: str = "spark/r0/state-0",
    *,
    stores: Sequence[str] = ("default",),
) -> Mapping[tuple[int, str], list[int]]:
    """The state after a batch, loaded as Spark does at a restart; KeyError if a file is missing."""
    for path in ("metadata", f"offsets/{batch}", *([f"offsets/{batch - 1}"] if batch else ())):
        _read(fs, f"{location}/{path}")
    entry = json.loads(_read(fs, f"{location}/commits/{batch}").decode().splitlines()[1])
    found = {}
    for partition, ids in enumerate(entry["stateUniqueIds"]["0"]):
        for store, own in zip(stores, ids, strict=True):
            directory = f"{location}/state/0/{partition}" + (
                "" if store == "default" else f"/{store}"
            )
            found[partition, store] = _load(fs, directory, batch + 1, own)
    return found


def _load(fs: FileSystem, directory: str, version: int, own: str) -> list[int]:
    lineage = [(version, own)]
    if not fs.exists(f"{directory}/{version}_{own}.zip"):
        change = json.loads(_read(fs, f"{directory}/{version}_{own}.changelog"))
        lineage = [*map(tuple, change["lineage"]), (version, own)]
    bases = [each for each in lineage if fs.exists(f"{directory}/{each[0]}_{each[1]}.zip")]
    state: list[int] = []
    base = 0
    if bases:
        base, base_id = max(bases)
        with zipfile.ZipFile(io.BytesIO(_read(fs, f"{directory}/{base}_{base_id}.zip"))) as archive:
            listed = json.loads(archive.read("metadata").decode().splitlines()[1])
        sst = listed["sstFiles"][0]["dfsSstFileName"]
        state = json.loads(_read(fs, f"{directory}/SSTs/{sst}"))
    elif lineage[0][0] != 1:
        raise KeyError("no base snapshot")
    for number, each in lineage:
        if number > base:
            state.append(json.loads(_read(fs, f"{directory}/{number}_{each}.changelog"))["batch"])
    return state


def _read(fs: FileSystem, path: str) -> bytes:
    data = fs.read(path)
    if data is None:
        raise KeyError(path)
    return data
