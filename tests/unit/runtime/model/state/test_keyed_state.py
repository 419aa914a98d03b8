"""Keyed state of a region: what it takes to give away some splits, and to take others in."""

from dataclasses import replace

import pytest

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState, StatePart
from tests.kit.coordinator.checkpoint_records import keyed_state, state_file

_A, _B, _C = (("source", "orders", partition) for partition in range(3))


def _contents(state: KeyedState) -> dict[SplitKey, list[tuple[str, int, int, bool]]]:
    """What a restore reads for each split, by name of the file."""
    return {
        split.key: [
            (state.files[part.file].path, part.offset, part.length, part.is_base)
            for part in split.parts
        ]
        for split in state.splits
    }


class TestSomeSplits:
    """`KeyedState.of` and `KeyedState.without`."""

    def test_a_split_takes_along_its_parts_and_only_their_files(self) -> None:
        state = keyed_state(_A, _B, _C)
        mine = state.of({_B})
        assert _contents(mine) == {_B: _contents(state)[_B]}
        assert mine.files == (state.files[1],)
        assert mine.tables == state.tables

    def test_the_other_splits_stay_with_their_files(self) -> None:
        state = keyed_state(_A, _B, _C)
        rest = state.without({_A})
        assert _contents(rest) == {key: _contents(state)[key] for key in (_B, _C)}
        assert rest.files == (state.files[1],)

    def test_a_split_without_parts_needs_no_file(self) -> None:
        assert keyed_state(_A, _B, _C).of({_C}).files == ()

    def test_unknown_splits_have_no_state(self) -> None:
        state = keyed_state(_A, _B)
        assert state.of({_C}).splits == ()
        assert state.without({_C}) == state


class TestMerging:
    """`KeyedState.merged`: parts of regions become the state of one."""

    def test_none_of_nothing(self) -> None:
        assert KeyedState.merged([]) is None

    def test_a_state_that_was_divided_is_whole_again(self) -> None:
        state = keyed_state(_A, _B, _C)
        again = KeyedState.merged([state.of({_B}), state.without({_B})])
        assert again is not None
        assert _contents(again) == _contents(state)
        assert set(again.files) == set(state.files)
        assert again.tables == state.tables
        assert (again.max_parallelism, again.partitions) == (1024, 3)

    def test_the_number_of_key_groups_is_that_of_the_splits(self) -> None:
        """A region without splits may have that of another topic."""
        state, other = keyed_state(_A), replace(keyed_state(_B), max_parallelism=64)
        merged = KeyedState.merged([other.of(()), state])
        assert merged is not None
        assert merged.max_parallelism == 1024
        with pytest.raises(DamagedCheckpointError, match="key groups name=64,1024"):
            KeyedState.merged([state, other])

    def test_a_file_of_two_regions_is_named_once(self) -> None:
        state = keyed_state(_A, _B)
        merged = KeyedState.merged([state.of({_A}), replace(keyed_state(_B, _C)).of({_B})])
        assert merged is not None
        assert len({file.path for file in merged.files}) == len(merged.files)

    def test_a_split_in_two_regions_is_damage(self) -> None:
        with pytest.raises(DamagedCheckpointError, match="contradict"):
            KeyedState.merged([keyed_state(_A, _B), keyed_state(_B, _C)])

    def test_one_number_of_two_tables_is_damage(self) -> None:
        other = keyed_state(_C)
        other = replace(other, tables=(replace(other.tables[0], name="totals"),))
        with pytest.raises(DamagedCheckpointError, match="contradict"):
            KeyedState.merged([keyed_state(_A, _B), other])

    def test_two_contents_of_one_file_are_damage(self) -> None:
        other = keyed_state(_C)
        other = replace(other, files=(replace(other.files[0], sha256="0" * 64), other.files[1]))
        with pytest.raises(DamagedCheckpointError, match="contradict"):
            KeyedState.merged([keyed_state(_A, _B), other])


@pytest.mark.parametrize(
    "split",
    [
        SplitState(source_id="s", topic="t", partition=0, parts=parts)
        for parts in (
            (StatePart(file=1, offset=0, length=1),),
            (StatePart(file=-1, offset=0, length=1),),
            (StatePart(file=0, offset=-1, length=1),),
            (StatePart(file=0, offset=0, length=-1),),
            (
                StatePart(file=0, offset=0, length=1),
                StatePart(file=0, offset=1, length=1, is_base=True),
            ),
        )
    ],
)
def test_parts_outside_the_files_and_late_bases_are_refused(split: SplitState) -> None:
    """They would give a split no state, or hide what came before."""
    with pytest.raises(ConfigError, match="keyed state"):
        KeyedState(files=(state_file("1-1-00000000.changes"),), splits=(split,))


def test_splits_files_and_tables_are_there_once() -> None:
    """A second one of the same name would be read instead of the first, or beside it."""
    state = keyed_state(_A, _B)
    for twice in (
        {"splits": (*state.splits, state.splits[0])},
        {"files": (*state.files, state.files[0])},
        {"tables": (*state.tables, state.tables[0])},
    ):
        with pytest.raises(ConfigError, match="keyed state"):
            replace(state, **twice)
