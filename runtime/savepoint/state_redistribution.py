"""Redistributes the keyed state of a repartition topic's splits by the key groups of its keys.

Every entry goes to the split of its key's new group; keys and values are copied as bytes. The rows
of a split are in order of table, time and key, and those that go from one split to another stay so.
First each old split is cut into a spill file, with pieces for each new split. Then each new split
is merged from its pieces. So memory does not grow with the state.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.model.state.key_groups import (
    key_groups,
    murmur2_of_column,
    partition_of_groups,
)
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.savepoint.keyed_rows import MEMORY, rows_of_split
from sluice.runtime.state.state_files import StateFileWriter, StateStore
from sluice.runtime.state.state_parts import PlacedPart, placed_parts
from sluice.runtime.state.state_rows import ROW_SCHEMA, merged_rows

__all__ = ["Checksum", "KeyGroups", "Redistribution"]

_BUFFER_BYTES = 64 << 20
_PIECES_BYTES = 128 << 20  # a merge has a piece of each old split in memory
_LEAST_PIECE_BYTES = 64 << 10
_NO_TIME = np.iinfo(np.int64).min
_MASK = 0xFFFFFFFFFFFFFFFF
_FACTORS = {"key": np.uint64(0x9E3779B97F4A7C15), "value": np.uint64(0xC2B2AE3D27D4EB4F)}
_TIME_KEY, _SCHEMAS = b"time", b"schemas of "
"""Of `sluice.runtime.keyed.operators.operator_memory`; all other keys are flags."""
_TIMES = struct.Struct(">qq")
_Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroups:
    """How keys belong to the partitions of a topic."""

    max_parallelism: int
    partitions: int

    def partitions_of(self, keys: pa.Array) -> _Int32s:
        """The partition of each encoded key."""
        return partition_of_groups(
            key_groups(keys.cast(pa.large_binary()), self.max_parallelism),
            partitions=self.partitions,
            max_parallelism=self.max_parallelism,
        )


@dataclass(slots=True)
class Checksum:
    """Rows of each table, and a sum over them that does not depend on their order."""

    rows: dict[int, int] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count these rows."""
        tables = batch["table"].to_numpy()
        mixed = batch["time"].fill_null(_NO_TIME).to_numpy().astype(np.uint64)
        for name, factor in _FACTORS.items():
            column = batch[name].cast(pa.large_binary())
            lengths = pc.binary_length(column).to_numpy().astype(np.uint64) << np.uint64(32)
            mixed = (mixed ^ (murmur2_of_column(column).astype(np.uint64) | lengths)) * factor
            mixed ^= mixed >> np.uint64(29)
        for number in np.unique(tables).tolist():
            mine = mixed[tables == number]
            self.rows[number] = self.rows.get(number, 0) + len(mine)
            self.sums[number] = self.sums.get(number, 0) + int(mine.sum(dtype=np.uint64)) & _MASK


class Redistribution:
    """The state of all splits of one repartition topic. Command line, one thread.

    Args:
        store: of the files of ``state``.
        state: of all splits of the topic.
        groups: as they will be.
        scratch: an existing directory of this host, for spill files.
        progress: called with the bytes of each old split, once it was read.
    """

    def __init__(
        self,
        store: StateStore,
        state: KeyedState,
        groups: KeyGroups,
        *,
        scratch: Path,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._groups = groups
        self._memories = {t.number: t.operator_id for t in state.tables if t.kind == MEMORY}
        self._flags: dict[int, frozenset[bytes]] = {}
        self._remembered: dict[tuple[int, bytes], bytes] = {}
        self._before = Checksum()
        self._after = Checksum()
        self._spills: list[_Spill] = []
        chains = list(placed_parts(state).values())
        piece_bytes = max(_PIECES_BYTES // max(len(chains), 1), _LEAST_PIECE_BYTES)
        for at, parts in enumerate(chains):
            spill = _Spill(scratch / f"{at}.spill", piece_bytes)
            self._read(rows_of_split(store, parts), spill)
            self._spills.append(spill)
            progress(sum(part.length for part in parts))

    @property
    def rows(self) -> int:
        """Of all keys."""
        return sum(self._before.rows.values())

    def has(self, partition: int) -> bool:
        """Whether a new split has state."""
        return bool(self._remembered) or any(spill.has(partition) for spill in self._spills)

    def write(self, partition: int, writer: StateFileWriter) -> tuple[int, int]:
        """Write the whole state of a new split; offset and length."""
        streams = [spill.rows(partition) for spill in self._spills if spill.has(partition)]
        return writer.write_section(merged_rows([*streams, self._memory_rows()]))

    def check(self, store: StateStore, parts: Mapping[int, PlacedPart]) -> None:
        """Read new splits, and compare the partition of each key; `require_same` does the rest.

        Args:
            parts: by partition.
        Raises:
            DamagedCheckpointError: an entry is in the wrong split.
        """
        for partition, part in parts.items():
            for batch in store.rows(part.file, part.offset, part.length):
                keyed = self._with_keys(batch)
                if (self._groups.partitions_of(keyed["key"]) != partition).any():
                    raise _differs({"path": part.file.path, "partition": partition})
                self._after.add(keyed)

    def require_same(self) -> None:
        """After `check` of all splits.

        Raises:
            DamagedCheckpointError: an entry is missing, is new, or differs.
        """
        if self._after != self._before:
            raise _differs({"rows": self._before.rows, "found": self._after.rows})

    def _read(self, rows: Iterator[pa.RecordBatch], spill: "_Spill") -> None:
        known: dict[int, set[bytes]] = {}
        for batch in rows:
            keyed = self._with_keys(batch)
            if keyed.num_rows < batch.num_rows:
                self._remember(batch, known)
            if keyed.num_rows:
                self._before.add(keyed)
                spill.add(keyed, self._groups.partitions_of(keyed["key"]))
        spill.flush()
        for number, keys in known.items():
            if self._memories[number]:  # else a restore has dropped its function
                self._require_same_flags(number, frozenset(filter(_is_flag, keys)))

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that belong to a key: each split has what an operator remembers."""
        if not self._memories:
            return batch
        return batch.filter(pa.array(~np.isin(batch["table"].to_numpy(), list(self._memories))))

    def _remember(self, batch: pa.RecordBatch, keys: dict[int, set[bytes]]) -> None:
        for row in batch.to_pylist():
            if row["table"] in self._memories:
                keys.setdefault(row["table"], set()).add(row["key"])
                place = row["table"], row["key"]
                known = self._remembered.get(place, row["value"])
                self._remembered[place] = _combined(row["key"], known, row["value"])

    def _require_same_flags(self, number: int, flags: frozenset[bytes]) -> None:
        """A flag says what the entries of its split are like. If splits differ, it would be wrong
        for some entries of each new split."""
        known = self._flags.setdefault(number, flags)
        if known != flags:
            raise ConfigError(
                "two splits have state of functions with other settings",
                {
                    "operator_id": self._memories[number],
                    "remembered": ",".join(sorted(key.decode() for key in known ^ flags)),
                },
                "Start the job from this savepoint, and take another one once every region has "
                "completed a checkpoint.",
            )

    def _memory_rows(self) -> Iterator[pa.RecordBatch]:
        rows = [
            {"table": number, "time": None, "key": key, "value": value}
            for (number, key), value in sorted(self._remembered.items())
        ]
        return iter([pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)] if rows else [])


class _Spill:
    """The rows of one old split by their new split, in a file: pieces, each in order."""

    def __init__(self, path: Path, piece_bytes: int) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._pieces: dict[int, list[tuple[int, int]]] = {}

    def add(self, batch: pa.RecordBatch, partitions: _Int32s) -> None:
        order = np.argsort(partitions, kind="stable")
        ordered = batch.take(pa.array(order))
        found, starts = np.unique(partitions[order], return_index=True)
        ends = [*starts[1:].tolist(), batch.num_rows]
        for partition, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            self._waiting.setdefault(partition, []).append(ordered.slice(start, end - start))
        self._bytes += ordered.nbytes
        if self._bytes >= _BUFFER_BYTES:
            self.flush()

    def has(self, partition: int) -> bool:
        return partition in self._pieces

    def rows(self, partition: int) -> Iterator[pa.RecordBatch]:
        with self._path.open("rb") as file:
            for offset, length in self._pieces[partition]:
                file.seek(offset)
                with pa.ipc.open_stream(file.read(length)) as stream:
                    yield from stream

    def flush(self) -> None:
        with self._path.open("ab") as file:
            for partition, batches in self._waiting.items():
                for piece in self._pieces_of(pa.concat_batches(batches)):
                    self._pieces.setdefault(partition, []).append((file.tell(), piece.size))
                    file.write(piece)
        self._waiting, self._bytes = {}, 0

    def _pieces_of(self, rows: pa.RecordBatch) -> Iterator[pa.Buffer]:
        step = max(1, self._piece_bytes * rows.num_rows // max(rows.nbytes, 1))
        for start in range(0, rows.num_rows, step):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, ROW_SCHEMA) as stream:
                stream.write_batch(rows.slice(start, step))
            yield sink.getvalue()


def _is_flag(key: bytes) -> bool:
    """Whether it is neither the time of a barrier nor the schemas of rows."""
    return key != _TIME_KEY and not key.startswith(_SCHEMAS)


def _combined(key: bytes, first: bytes, second: bytes) -> bytes:
    """The memory of an operator for a split with keys of two splits: all barriers that one of them
    has seen."""
    if key == _TIME_KEY:
        pairs = zip(_TIMES.unpack(first), _TIMES.unpack(second), strict=True)
        return _TIMES.pack(*map(max, pairs))
    if first != second:
        raise ConfigError(
            "two splits have state of rows with other types",
            {"remembered": key, "first": first, "second": second},
            "Take another savepoint, once rows of one type have come to all splits.",
        )
    return first


def _differs(where: dict[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "the redistributed state has other entries than before",
        where,
        "Report this, and keep the savepoint: it is unchanged.",
    )
