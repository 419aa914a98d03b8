"""The parts of a task's splits: which sections of which files hold the state now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState, StatePart

__all__ = ["PlacedPart", "keyed_state", "placed_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPart:
    """A section of a state file; see `sluice.runtime.model.state.keyed_state.StatePart`."""

    file: FileReference
    offset: int
    length: int
    is_base: bool = False


def placed_parts(state: KeyedState) -> dict[SplitKey, list[PlacedPart]]:
    """The parts of each split, oldest first."""
    return {
        split.key: [
            PlacedPart(
                file=state.files[part.file],
                offset=part.offset,
                length=part.length,
                is_base=part.is_base,
            )
            for part in split.parts
        ]
        for split in state.splits
    }


def keyed_state(declared: KeyedState, parts: Mapping[SplitKey, Sequence[PlacedPart]]) -> KeyedState:
    """The state that a region records.

    Args:
        declared: the tables and the partitioning; its files and splits are left out.
        parts: of each split, oldest first.
    """
    files = tuple(dict.fromkeys(part.file for each in parts.values() for part in each))
    index = {file: at for at, file in enumerate(files)}
    return replace(
        declared,
        files=files,
        splits=tuple(
            SplitState(
                source_id=key[0],
                topic=key[1],
                partition=key[2],
                parts=tuple(
                    StatePart(
                        file=index[part.file],
                        offset=part.offset,
                        length=part.length,
                        is_base=part.is_base,
                    )
                    for part in of_split
                ),
            )
            for key, of_split in parts.items()
        ),
    )
