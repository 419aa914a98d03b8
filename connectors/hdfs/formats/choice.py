"""A file format from its name and the user's options. Pure."""

from collections.abc import Callable, Mapping

from sluice.connectors.hdfs.formats import avro, orc, parquet
from sluice.connectors.hdfs.formats.avro import Avro
from sluice.connectors.hdfs.formats.compression import TEXT_CODECS
from sluice.connectors.hdfs.formats.csv_lines import CsvLines
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.formats.format_options import FormatOptions, character, flag, text
from sluice.connectors.hdfs.formats.json_lines import JsonLines
from sluice.connectors.hdfs.formats.orc import Orc
from sluice.connectors.hdfs.formats.parquet import Parquet
from sluice.connectors.hdfs.formats.temporal import SPARKS_OWN, Pattern, TemporalFormat
from sluice.connectors.hdfs.formats.time_zones import time_zone
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest

__all__ = ["FORMAT_NAMES", "OPTIONS", "file_format", "format_name"]

_TEMPORAL = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone")

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "parquet": ("compression",),
    "orc": ("compression",),
    "avro": ("compression", "recordName", "recordNamespace"),
    "json": ("compression", "ignoreNullFields", "lineSep", *_TEMPORAL),
    "csv": (
        *("compression", "emptyValue", "escape", "escapeQuotes", "header", "lineSep"),
        *("nullValue", "quote", "quoteAll", "sep", *_TEMPORAL),
    ),
}
"""The options of each format."""

FORMAT_NAMES = tuple(OPTIONS)
"""As Spark names them."""


def format_name(text: str) -> str:
    """One of `FORMAT_NAMES`, whatever its case.

    Raises:
        ConfigError: there is no such format.
    """
    found = text.strip().lower()
    if found in OPTIONS:
        return found
    guess = nearest(found, FORMAT_NAMES)
    raise ConfigError(
        "there is no such file format",
        {"format": text},
        f"Did you mean {guess}?" if guess else f"Use one of {', '.join(FORMAT_NAMES)}.",
    )


def file_format(name: str, options: Mapping[str, str], *, session_zone: str) -> FileFormat:
    """The format that tasks write.

    Args:
        name: one of `FORMAT_NAMES`, in any case.
        options: those of Spark's own writer of this format; no others.
        session_zone: Spark's session time zone, in which text formats show instants.
    Raises:
        ConfigError: an unknown format or option, or a value that is not valid.
    """
    chosen = format_name(name)
    given = FormatOptions(options, known=OPTIONS[chosen], of=chosen)
    return _MAKERS[chosen](given, session_zone)


def _parquet(given: FormatOptions, _session_zone: str) -> FileFormat:
    return Parquet(codec=given.codec(parquet.CODECS))


def _orc(given: FormatOptions, _session_zone: str) -> FileFormat:
    return Orc(codec=given.codec(orc.CODECS))


def _avro(given: FormatOptions, _session_zone: str) -> FileFormat:
    return Avro(
        codec=given.codec(avro.CODECS),
        record_name=given.read("recordName", text, "topLevelRecord"),
        record_namespace=given.read("recordNamespace", str, ""),
    )


def _json(given: FormatOptions, session_zone: str) -> FileFormat:
    return JsonLines(
        codec=given.codec(TEXT_CODECS),
        temporal=_temporal(given, session_zone),
        ignore_null_fields=given.read("ignoreNullFields", flag, True),
        line_end=given.read("lineSep", text, "\n"),
    )


def _csv(given: FormatOptions, session_zone: str) -> FileFormat:
    quote = given.read("quote", character, '"')
    return CsvLines(
        codec=given.codec(TEXT_CODECS),
        temporal=_temporal(given, session_zone),
        header=given.read("header", flag, False),
        separator=given.read("sep", _separator, ","),
        quote=quote,
        escape=given.read("escape", character, "\\"),
        quote_all=given.read("quoteAll", flag, False),
        escape_quotes=given.read("escapeQuotes", flag, True),
        null_value=given.read("nullValue", str, ""),
        empty_value=given.read("emptyValue", str, quote * 2),
        line_end=given.read("lineSep", text, "\n"),
    )


def _separator(value: str) -> str:
    """Spark takes a tab in this spelling, too."""
    separator = "\t" if value == "\\t" else value
    if not separator or "\\" in separator:
        raise ValueError("a separator without a backslash; \\t is a tab")
    return separator


def _temporal(given: FormatOptions, session_zone: str) -> TemporalFormat:
    default = SPARKS_OWN
    zone = given.read("timeZone", text, session_zone)
    time_zone(zone)
    local = given.read("timestampNTZFormat", Pattern.of, default.local_timestamp)
    return TemporalFormat(
        time_zone=zone,
        date=given.read("dateFormat", Pattern.of, default.date).of_local(),
        timestamp=given.read("timestampFormat", Pattern.of, default.timestamp),
        local_timestamp=local.of_local(),
    )


_MAKERS: Mapping[str, Callable[[FormatOptions, str], FileFormat]] = {
    "parquet": _parquet,
    "orc": _orc,
    "avro": _avro,
    "json": _json,
    "csv": _csv,
}
