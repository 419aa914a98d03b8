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
    """The description of an operator with its schema files in another checkpoint location.

    Args:
        content: of the file.
        location_uri: Spark's checkpoint location, without a slash at the end.
    Raises:
        ValueError: it is not such a description.
    """
    version, _, text = content.decode().partition("\n")
    found = json.loads(text)
    for store in found["stateStoreInfo"]:
        paths = [_SCHEMA.fullmatch(path) for path in store["stateSchemaFilePaths"]]
        if None in paths:
            raise ValueError(f"unknown paths of schema files: {store['stateSchemaFilePaths']}")
        store["stateSchemaFilePaths"] = [f"{location_uri}/{each[1]}" for each in paths if each]
    return f"{version}\n{json.dumps(found, separators=(',', ':'))}".encode()
