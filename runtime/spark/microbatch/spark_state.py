"""Describes Spark's state for a checkpoint: provider, versions, operators, schemas."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sluice.runtime.model.checkpoint_record import StateSnapshot
from sluice.runtime.spark.session.spark_session import QUERY_SETTINGS
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["StateDescriber", "structs_in"]

_PREFIX = "spark.sql.streaming.stateStore."
_DECODER = json.JSONDecoder()
_PARTITIONS = "spark.sql.shuffle.partitions"
_V2 = "v2"
_STRUCT = '{"type":"struct"'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    number: int
    name: str
    stores: tuple[str, ...]
    partitions: int


def structs_in(schema_file: bytes) -> list[dict[str, Any]]:
    """The schemas in one of Spark's state schema files, in order: key, value, key, value, ….

    Spark frames them differently from version to version, but each is the JSON of a struct.
    """
    text = schema_file.decode("utf-8", errors="replace")
    found: list[dict[str, Any]] = []
    at = text.find(_STRUCT)
    while at >= 0:
        struct, end = _DECODER.raw_decode(text, at)
        found.append(struct)
        at = text.find(_STRUCT, end)
    return found


class StateDescriber:
    """Describes the state of one stateful query. Driver; called once for each batch.

    A query cannot change its operators, partitions and schemas, because Spark refuses to resume
    with others. So this reads them from Spark's files once.
    """

    def __init__(self, fs: FileSystem, location: str) -> None:
        self._fs = fs
        self._location = location
        self._state = f"{location}/state"
        self._fixed: StateSnapshot | None = None

    def after(self, batch_id: int) -> StateSnapshot:
        """The state after a batch; Spark has run it, so its files are there."""
        if self._fixed is None:
            self._fixed = self._read(batch_id)
        return replace(self._fixed, state_version=batch_id + 1)

    def _read(self, batch_id: int) -> StateSnapshot:
        operators = list(self._operators())
        schemas: list[dict[str, Any]] = [
            {"operator": operator.number, "store": store, "schemas": structs_in(content)}
            for operator in operators
            for store in operator.stores
            if (content := self._schema_file(operator, store)) is not None
        ]
        keys = [
            {**schema, "schemas": schema["schemas"][:1]} for schema in schemas if schema["schemas"]
        ]
        return StateSnapshot(
            provider=QUERY_SETTINGS[f"{_PREFIX}providerClass"],
            checkpoint_format_version=int(QUERY_SETTINGS[f"{_PREFIX}checkpointFormatVersion"]),
            state_version=0,
            state_partitions=self._partitions(batch_id)
            or max((operator.partitions for operator in operators), default=0),
            operators=tuple((operator.number, operator.name) for operator in operators),
            state_schema=json.dumps(schemas),
            key_schema=json.dumps(keys),
            location=self._state,
        )

    def _operators(self) -> Iterator[_Operator]:
        """From Spark's operator metadata: a version line, then JSON."""
        names = [entry.name for entry in self._fs.entries(self._state)]
        for name in sorted(filter(str.isdigit, names), key=int):
            content = self._operator_metadata(f"{self._state}/{name}/_metadata")
            if content is None:
                continue
            info = json.loads(content.decode().splitlines()[1])
            stores = info["stateStoreInfo"]
            yield _Operator(
                number=int(name),
                name=info["operatorInfo"]["operatorName"],
                stores=tuple(store["storeName"] for store in stores),
                partitions=max(int(store["numPartitions"]) for store in stores),
            )

    def _operator_metadata(self, directory: str) -> bytes | None:
        """The operator's metadata: one file in version 1; in version 2, which `transformWithState`
        has, one file for each batch that has changed it."""
        content = self._fs.read(f"{directory}/metadata")
        changed = [] if content is not None else self._fs.entries(f"{directory}/{_V2}")
        batches = sorted((each.name for each in changed if each.name.isdigit()), key=int)
        return self._fs.read(f"{directory}/{_V2}/{batches[-1]}") if batches else content

    def _partitions(self, batch_id: int) -> int | None:
        """From the offset log: Spark leaves an operator's metadata of version 1 as it is when it
        repartitions the state."""
        content = self._fs.read(f"{self._location}/offsets/{batch_id}")
        lines = [] if content is None else content.decode().splitlines()
        found = json.loads(lines[1])["conf"].get(_PARTITIONS) if len(lines) > 1 else None
        return None if found is None else int(found)

    def _schema_file(self, operator: _Operator, store: str) -> bytes | None:
        """Of partition 0; the default store has no directory of its own. `transformWithState` has
        one for all partitions, and another one after each change of its variables."""
        directory = f"{self._state}/{operator.number}"
        partition = f"{directory}/0{'' if store == 'default' else f'/{store}'}"
        content = self._fs.read(f"{partition}/_metadata/schema")
        if content is not None:
            return content
        changed = f"{directory}/_stateSchema/{store}"
        names = [each.name for each in self._fs.entries(changed) if each.name[:1].isdigit()]
        newest = max(names, key=lambda name: int(name.partition("_")[0]), default=None)
        return None if newest is None else self._fs.read(f"{changed}/{newest}")
