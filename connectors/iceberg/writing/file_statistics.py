"""Statistics of a data file, by which readers and deletes skip it or take all of it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData
    from pyiceberg.io.fileformat import DataFileStatistics
    from pyiceberg.io.pyarrow import StatsAggregator
    from pyiceberg.schema import Schema

__all__ = ["file_statistics", "nan_counts"]

_FIRST_SURROGATE, _AFTER_SURROGATES = "\ud800", "\ue000"


def nan_counts(rows: pa.Table) -> Counter[str]:
    """Numbers of NaN in the top-level columns, by name. Pure.

    Nested columns need none: pyiceberg keeps no bounds of them.
    """
    return Counter(
        {
            column.name: pc.sum(pc.is_nan(rows.column(column.name)), min_count=0).as_py()
            for column in rows.schema
            if pt.is_floating(column.type)
        }
    )


def file_statistics(
    found: "DataFileStatistics",
    metadata: "FileMetaData",
    schema: "Schema",
    nans: Mapping[str, int],
) -> dict[str, Any]:
    """Fields of a `WrittenFile`. Pure.

    Args:
        found: by pyiceberg; some of its bounds do not cover all values.
        metadata: of the Parquet file.
        schema: of the file.
        nans: their numbers by top-level column. Bounds leave them out, and a reader that finds no
            number believes that there are none.
    """
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

    ids = parquet_path_to_id_mapping(schema)
    unbounded = {ids[path] for path in _without_bounds(metadata)}
    bounds = {key: one for key, one in found.column_aggregates.items() if key not in unbounded}
    nans_by_id = {schema.find_field(name).field_id: number for name, number in nans.items()}
    return {
        "rows": found.record_count,
        "split_offsets": tuple(found.split_offsets),
        "column_sizes": found.column_sizes,
        "value_counts": found.value_counts,
        "null_value_counts": found.null_value_counts,
        "nan_value_counts": {
            # As Java's writers: none of a column whose metrics mode is ``none``.
            field_id: number
            for field_id, number in nans_by_id.items()
            if field_id in found.value_counts
        },
        "lower_bounds": _known({key: one.min_as_bytes() for key, one in bounds.items()}),
        "upper_bounds": _known({key: _upper_bound(one) for key, one in bounds.items()}),
    }


def _without_bounds(metadata: "FileMetaData") -> Iterator[str]:
    """Columns of which a row group has values and no bounds, by their paths in the file.

    Parquet keeps no bounds of a row group whose least or greatest value is above 4 KB. pyiceberg
    takes those of the other row groups for the whole file.
    """
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for position in range(metadata.num_columns):
            column = group.column(position)
            found = column.statistics
            if found is None or (found.num_values and not found.has_min_max):
                yield column.path_in_schema


def _known(bounds: Mapping[int, bytes | None]) -> dict[int, bytes]:
    return {field_id: bound for field_id, bound in bounds.items() if bound is not None}


def _upper_bound(bounds: "StatsAggregator") -> bytes | None:
    """None: no value of the table's length is above all values."""
    from pyiceberg.utils.truncate import truncate_upper_bound_text_string

    try:
        return bounds.max_as_bytes()
    except UnicodeEncodeError:
        # pyiceberg counts up the last code point of a long text, here to one that no text has.
        cut = truncate_upper_bound_text_string(bounds.current_max, bounds.trunc_length) or ""
        return bounds.serialize(cut.replace(_FIRST_SURROGATE, _AFTER_SURROGATES))
