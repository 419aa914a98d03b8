"""Compressed text files with names and contents that Hadoop's codecs, and so Spark, read."""

import bz2
import zlib
from collections.abc import Callable, Mapping
from typing import BinaryIO, Protocol

from sluice.connectors.hdfs.formats.format_options import Codec

__all__ = ["TEXT_CODECS", "TextFile"]

_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header
_ZLIB_WINDOW = 15

TEXT_CODECS = {
    "none": Codec(name="none", extension=""),
    "uncompressed": Codec(name="none", extension=""),
    "gzip": Codec(name="gzip", extension=".gz"),
    "bzip2": Codec(name="bzip2", extension=".bz2"),
    "deflate": Codec(name="deflate", extension=".deflate"),
}
"""By the names of Spark's option ``compression``; its lz4, snappy and zstd need Hadoop's frames."""


class _Compressor(Protocol):
    def compress(self, data: memoryview, /) -> bytes: ...

    def flush(self) -> bytes: ...


_COMPRESSORS: Mapping[str, Callable[[], _Compressor]] = {
    "gzip": lambda: zlib.compressobj(wbits=_GZIP_WINDOW),
    "deflate": lambda: zlib.compressobj(wbits=_ZLIB_WINDOW),
    "bzip2": bz2.BZ2Compressor,
}


class TextFile:
    """A stream that compresses what is written; one thread."""

    def __init__(self, stream: BinaryIO, codec: Codec) -> None:
        self._stream = stream
        self._compressor = _COMPRESSORS[codec.name]() if codec.name in _COMPRESSORS else None

    def write(self, data: memoryview) -> None:
        """Append."""
        written = self._compressor.compress(data) if self._compressor else data
        if written:
            self._stream.write(written)

    def close(self) -> None:
        """End the compressed data; the stream stays open."""
        if self._compressor:
            self._stream.write(self._compressor.flush())
