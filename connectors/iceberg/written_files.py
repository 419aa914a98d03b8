"""Files that a task wrote and no snapshot names yet, as checkpoints keep them. Pure.

Tasks make them; the committer and a recovery in another process read them.
"""

import base64
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Self

from sluice.runtime.errors import StreamError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.payloads import committable, content_of, number, rows, text
from sluice.runtime.model.splits import BatchKey

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

__all__ = [
    "COMMITTABLE_KIND",
    "COMMITTABLE_VERSION",
    "InvalidDataFilesError",
    "PartitionValue",
    "WriteAttempt",
    "WrittenFile",
    "WrittenFiles",
    "decode_written_files",
    "encode_written_files",
    "type_name",
    "types_of",
]

COMMITTABLE_KIND = "iceberg-data-files"
COMMITTABLE_VERSION = 2
_OF_APPENDS = 1  # has data files alone

PartitionValue = None | bool | int | float | str | bytes | Decimal | uuid.UUID
"""A value of a partition field, in Iceberg's own form: a day is a number of days."""

_ATTEMPT = re.compile(r"(?P<batch>\d+)-(?P<attempt>[0-9a-f]{32})")


class InvalidDataFilesError(StreamError):
    """A set of data files is out of range: nothing may be appended or deleted with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAttempt:
    """One attempt of a task to write its rows of a batch.

    Attributes:
        batch: that it writes for.
        attempt: 32 random hexadecimal digits, so that no other attempt writes the same file.
    """

    batch: BatchKey
    attempt: str

    @classmethod
    def draw(cls, batch: BatchKey) -> Self:
        """A new attempt for a batch."""
        return cls(batch=batch, attempt=uuid.uuid4().hex)

    @property
    def path(self) -> str:
        """``{region}.{attempt_id}/{batch id}-{attempt}``: it registers under this name."""
        batch = self.batch
        return f"{batch.region}.{batch.attempt_id}/{batch.batch_id}-{self.attempt}"

    @property
    def position(self) -> tuple[int, int]:
        """Attempt and batch: a region commits them in ascending order."""
        return self.batch.attempt_id, self.batch.batch_id

    @classmethod
    def parse(cls, path: str) -> Self | None:
        """The inverse of `path`; None for a name that is not ours."""
        directory, _, name = path.rpartition("/")
        region, _, attempt_id = directory.rpartition(".")
        match = _ATTEMPT.fullmatch(name)
        if match is None or not region or not (attempt_id.isascii() and attempt_id.isdecimal()):
            return None
        batch = BatchKey(region=region, attempt_id=int(attempt_id), batch_id=int(match["batch"]))
        return cls(batch=batch, attempt=match["attempt"])


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A whole data or delete file with the statistics that Iceberg keeps of it.

    Attributes:
        path: full location.
        length_bytes: > 0.
        rows: > 0.
        partition: values of the partition fields, in the order of the spec.
        sort_order_id: of the order in which its rows are; None: they are not sorted.
        split_offsets: where its row groups begin.
        column_sizes, value_counts, null_value_counts, nan_value_counts: by field id.
        lower_bounds, upper_bounds: single values in Iceberg's binary form, by field id.
        run: of upserts: rows of a later run of the task replace those of an earlier one.
    """

    path: str
    length_bytes: int
    rows: int
    partition: tuple[PartitionValue, ...] = ()
    sort_order_id: int | None = None
    split_offsets: tuple[int, ...] = ()
    column_sizes: Mapping[int, int] = field(default_factory=dict, hash=False)
    value_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    null_value_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    run: int = 0

    def __post_init__(self) -> None:
        if not self.path or self.length_bytes <= 0 or self.rows <= 0:
            raise InvalidDataFilesError(
                "a data file is out of range",
                {"path": self.path, "length_bytes": self.length_bytes, "rows": self.rows},
                "Restore from the previous checkpoint; report the damaged one.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """The files that one task wrote for one batch: committed all at once, or deleted.

    Attributes:
        table: name of the table in the catalog.
        table_uuid: of the table; another one under the name is not ours.
        location: of the table when the files were written.
        job_uid: of the job.
        attempt: that wrote them.
        spec_id: of the partition spec that they follow.
        checkpoint_id: that the batch was expected to join.
        files: data files; at least one.
        deletes: equality-delete files of upserts: they delete rows of earlier runs and commits.
        equality_ids: fields of the key, if there are deletes.
        types: of all fields by their id, nested ones too; see `type_name`.
    """

    table: str
    table_uuid: str
    location: str
    job_uid: str
    attempt: WriteAttempt
    spec_id: int
    checkpoint_id: int
    files: tuple[WrittenFile, ...]
    deletes: tuple[WrittenFile, ...] = ()
    equality_ids: tuple[int, ...] = ()
    types: Mapping[int, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        named = self.table and self.table_uuid and self.job_uid and self.files
        if not named or bool(self.deletes) != bool(self.equality_ids):
            raise InvalidDataFilesError(
                "a set of data files is out of range",
                {"table": self.table, "files": len(self.files)},
                "Restore from the previous checkpoint; report the damaged one.",
            )

    @property
    def rows(self) -> int:
        """In all data files."""
        return sum(file.rows for file in self.files)

    @property
    def paths(self) -> list[str]:
        """Of all files."""
        return [file.path for file in (*self.files, *self.deletes)]


def types_of(schema: "Schema") -> dict[int, str]:
    """The types of all fields by their id, as `WrittenFiles` has them."""
    from pyiceberg.schema import index_by_id

    return {column: type_name(found.field_type) for column, found in index_by_id(schema).items()}


def type_name(kind: "IcebergType") -> str:
    """A primitive type as the specification writes it; of others ``struct``, ``list`` or ``map``:
    their fields have ids of their own."""
    return str(kind) if kind.is_primitive else type(kind).__name__.removesuffix("Type").lower()


def encode_written_files(written: WrittenFiles, *, operator_id: str) -> StateEntry:
    """The committable that stands in an acknowledgement and in ``_metadata``."""
    content: dict[str, object] = {
        "table": written.table,
        "uuid": written.table_uuid,
        "location": written.location,
        "job": written.job_uid,
        "region": written.attempt.batch.region,
        "attempt": written.attempt.batch.attempt_id,
        "batch": written.attempt.batch.batch_id,
        "id": written.attempt.attempt,
        "spec": written.spec_id,
        "checkpoint": written.checkpoint_id,
        "types": _by_type(written.types),
        "files": [_row(file) for file in written.files],
    }
    version = _OF_APPENDS
    if written.deletes:
        version = COMMITTABLE_VERSION
        content["files"] = [[*_row(file), file.run] for file in written.files]
        content["deletes"] = [[*_row(file), file.run] for file in written.deletes]
        content["key"] = list(written.equality_ids)
    return committable(content, kind=COMMITTABLE_KIND, version=version, operator_id=operator_id)


def _by_type(types: Mapping[int, str]) -> dict[str, list[int]]:
    """Few types and many fields: shorter than a type for each field."""
    found: dict[str, list[int]] = {}
    for column, name in sorted(types.items()):
        found.setdefault(name, []).append(column)
    return found


def _row(file: WrittenFile) -> list[object]:
    counts = (
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
    )
    return [
        file.path,
        file.length_bytes,
        file.rows,
        [_encoded(value) for value in file.partition],
        file.sort_order_id,
        list(file.split_offsets),
        *([[key, number] for key, number in sorted(found.items())] for found in counts),
        *(
            [[key, base64.b64encode(bound).decode()] for key, bound in sorted(bounds.items())]
            for bounds in (file.lower_bounds, file.upper_bounds)
        ),
    ]


def decode_written_files(entry: StateEntry) -> WrittenFiles:
    """The data files inside a committable.

    Raises:
        UnsupportedFormatError: another kind, or a version newer than this code.
        DamagedCheckpointError: the payload is not what its version promises.
        InvalidDataFilesError: a value is out of range.
    """
    return content_of(
        entry,
        _from_content,
        kind=COMMITTABLE_KIND,
        version=COMMITTABLE_VERSION,
        what="a set of data files",
    )


def _from_content(content: Mapping[str, object]) -> WrittenFiles:
    batch = BatchKey(
        region=text(content["region"]),
        attempt_id=number(content["attempt"]),
        batch_id=number(content["batch"]),
    )
    return WrittenFiles(
        table=text(content["table"]),
        table_uuid=text(content["uuid"]),
        location=text(content["location"]),
        job_uid=text(content["job"]),
        attempt=WriteAttempt(batch=batch, attempt=text(content["id"])),
        spec_id=number(content["spec"]),
        checkpoint_id=number(content["checkpoint"]),
        files=tuple(_file(*row) for row in rows(content["files"])),
        deletes=tuple(_file(*row) for row in rows(content.get("deletes", []))),
        equality_ids=tuple(map(number, rows([content.get("key", [])])[0])),
        types=_types(content["types"]),
    )


def _types(by_type: object) -> dict[int, str]:
    if not isinstance(by_type, dict):
        raise TypeError(f"not types of fields: {by_type!r}")
    return {
        number(column): name for name, columns in by_type.items() for column in rows([columns])[0]
    }


def _file(
    path: object,
    length_bytes: object,
    count: object,
    partition: object,
    sort_order_id: object,
    split_offsets: object,
    *others: object,
) -> WrittenFile:
    sizes, values, nulls, nans, lower, upper, *run = others
    (fields, offsets) = rows([partition, split_offsets])
    return WrittenFile(
        path=text(path),
        length_bytes=number(length_bytes),
        rows=number(count),
        partition=tuple(map(_decoded, fields)),
        sort_order_id=None if sort_order_id is None else number(sort_order_id),
        split_offsets=tuple(map(number, offsets)),
        column_sizes=_counts(sizes),
        value_counts=_counts(values),
        null_value_counts=_counts(nulls),
        nan_value_counts=_counts(nans),
        lower_bounds=_bounds(lower),
        upper_bounds=_bounds(upper),
        run=number(*run) if run else 0,
    )


def _counts(pairs: object) -> dict[int, int]:
    return {number(key): number(count) for key, count in rows(pairs)}


def _bounds(pairs: object) -> dict[int, bytes]:
    return {number(key): base64.b64decode(text(bound)) for key, bound in rows(pairs)}


def _encoded(value: PartitionValue) -> object:
    """JSON of a value; what JSON lacks becomes ``{type: text}``."""
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, uuid.UUID):
        return {"uuid": str(value)}
    return value


def _decoded(value: object) -> PartitionValue:
    if value is None or isinstance(value, bool | int | str):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise TypeError(f"not a partition value: {value!r}")
    ((kind, shown),) = value.items()
    return _DECODERS[kind](text(shown))


_DECODERS: Mapping[str, Callable[[str], PartitionValue]] = {
    "float": float.fromhex,
    "bytes": base64.b64decode,
    "decimal": Decimal,
    "uuid": uuid.UUID,
}
