"""Spark's description of an operator names its schema files by their whole path; pure.

`transformWithState` has such files::

    state/0/_metadata/v2/0                     names …/state/0/_stateSchema/default/0_7c9cd7c5
    state/0/_stateSchema/default/0_7c9cd7c5    the schemas

So a copy in another directory needs other paths: with the old ones Spark would read the files of
the original, or fail if that was deleted.
"""

import json
import re

__all__ = ["is_operator_metadata", "with_location"]

_PATH = re.compile(r"(?:.*/)?state/\d+/_metadata/v2/\d+", re.DOTALL)
_SCHEMA = re.compile(r".*/(state/\d+/_stateSchema/.+)", re.DOTALL)


def is_operator_metadata(path: str) -> bool:
    """Whether a file of Spark's checkpoint location names schema files."""
    return _PATH.fullmatch(path) is not None


def with_location(content: bytes, location_uri: str) -> bytes:
    """The description of an operator with its schema files in another checkpoint location; the same
    bytes if they are there.

    Args:
        content: of the file.
        location_uri: Spark's checkpoint location, without a slash at the end.
    Raises:
        ValueError, LookupError, TypeError: it is not such a description.
    """
    version, _, text = content.decode().partition("\n")
    found = json.loads(text)
    is_moved = False
    for store in found["stateStoreInfo"]:
        before = store["stateSchemaFilePaths"]
        store["stateSchemaFilePaths"] = [_moved(path, location_uri) for path in before]
        is_moved |= [*map(_plain, before)] != [*map(_plain, store["stateSchemaFilePaths"])]
    return f"{version}\n{json.dumps(found)}".encode() if is_moved else content


def _moved(path: str, location_uri: str) -> str:
    match = _SCHEMA.fullmatch(path)
    if match is None:
        raise ValueError(f"unknown path of a schema file: {path}")
    return f"{location_uri}/{match[1]}"


def _plain(uri: str) -> str:
    """Hadoop writes ``file:/a`` for ``file:///a``."""
    return re.sub(r"file:/+", "file:/", uri)
