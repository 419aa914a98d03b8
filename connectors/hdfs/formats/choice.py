"""A file format from its name and the user's options. Pure."""

from collections.abc import Callable, Mapping

from sluice.connectors.hdfs.formats import avro, parquet
from sluice.connectors.hdfs.formats.avro import Avro
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.formats.format_options import FormatOptions, flag, text
from sluice.connectors.hdfs.formats.parquet import Parquet
from sluice.connectors.hdfs.formats.text_formats import TEXT_CODECS, Csv, JsonLines
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest

__all__ = ["FORMAT_NAMES", "OPTIONS", "TASK_FORMAT_NAMES", "file_format", "format_name"]

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "parquet": ("compression",),
    "avro": ("compression", "recordName", "recordNamespace"),
    "json": ("compression", "ignoreNullFields"),
    "csv": ("compression", "escape", "header", "sep"),
}
"""The options of each format that tasks write without a JVM."""

TASK_FORMAT_NAMES = tuple(OPTIONS)
"""Formats that tasks write without a JVM."""

FORMAT_NAMES = ("parquet", "orc", "avro", "json", "csv")
"""Formats of Spark's own writers, as Spark names them."""


def format_name(text: str) -> str:
    """One of `FORMAT_NAMES`; upper and lower case are alike.

    Raises:
        ConfigError: there is no such format.
    """
    found = text.strip().lower()
    if found in FORMAT_NAMES:
        return found
    guess = nearest(found, FORMAT_NAMES)
    raise ConfigError(
        "there is no such file format",
        {"format": text},
        f"Did you mean {guess}?" if guess else f"Use one of {', '.join(FORMAT_NAMES)}.",
    )


def file_format(name: str, options: Mapping[str, str]) -> FileFormat:
    """The format that tasks write.

    Args:
        name: one of `TASK_FORMAT_NAMES`, in any case.
        options: by the names of Spark's own writer of this format; only those of `OPTIONS`.
    Raises:
        ConfigError: an unknown format or option, a value that is not valid, or a format that only
            Spark's own writers have.
    """
    chosen = format_name(name)
    if chosen not in OPTIONS:
        raise ConfigError(
            "tasks do not write this format without Spark's writer",
            {"format": chosen},
            f"Use one of {', '.join(OPTIONS)}, or write it with a Job and HdfsSink.",
        )
    return _MAKERS[chosen](FormatOptions(options, known=OPTIONS[chosen], of=chosen))


def _parquet(given: FormatOptions) -> FileFormat:
    return Parquet(codec=given.codec(parquet.CODECS))


def _avro(given: FormatOptions) -> FileFormat:
    return Avro(
        codec=given.codec(avro.CODECS),
        record_name=given.read("recordName", text, "topLevelRecord"),
        record_namespace=given.read("recordNamespace", str, ""),
    )


def _json(given: FormatOptions) -> FileFormat:
    return JsonLines(
        codec=given.codec(TEXT_CODECS),
        ignore_null_fields=given.read("ignoreNullFields", flag, True),
    )


def _csv(given: FormatOptions) -> FileFormat:
    if not given.read("escape", _doubled_quote, False):
        raise ConfigError(
            "tasks write CSV with doubled quotes, not Spark's backslashes",
            {"format": "csv"},
            "Set the option escape to a double quote, for this sink and for each reader; or use "
            "another format.",
        )
    return Csv(
        codec=given.codec(TEXT_CODECS),
        header=given.read("header", flag, False),
        separator=given.read("sep", _separator, ","),
    )


def _doubled_quote(value: str) -> bool:
    if value != '"':
        raise ValueError("a double quote: tasks write quotes doubled")
    return True


def _separator(value: str) -> str:
    """Spark also takes a tab in this spelling."""
    separator = "\t" if value == "\\t" else value
    if len(separator) != 1 or not separator.isascii() or separator in '"\\\r\n\0':
        raise ValueError("one ASCII character other than a quote or a backslash; \\t is a tab")
    return separator


_MAKERS: Mapping[str, Callable[[FormatOptions], FileFormat]] = {
    "parquet": _parquet,
    "avro": _avro,
    "json": _json,
    "csv": _csv,
}
