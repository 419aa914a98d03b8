"""A task's tables equal plain dicts, whatever is written, rolled back, ended and restored."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import TaskTables
from sluice.runtime.state.memory_backend import MemoryBackend
from sluice.runtime.state.task_state import TaskState
from tests.kit.keyed.plain_tables import PlainTables

SPLITS = (("s", "t", 0), ("s", "t", 1), ("s", "t", 2))
PLAIN, OTHER, TIMED = 0, 1, 2
KEYS = st.sampled_from([b"", b"\0", b"a", b"ab", b"abc", b"b", b"\xff", b"\xff\xff"])
VALUES = st.sampled_from([None, None, b"", b"v", b"w" * 40])
TIMES = st.sampled_from([-(2**62), -1, 0, 1, 5, 6, 2**62])


@dataclass(frozen=True, slots=True)
class Put:
    """Writes into one table of one split."""

    table: int
    split: int
    entries: dict[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class PutTimed:
    """Writes into the timed table of one split."""

    split: int
    entries: dict[tuple[int, bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class End:
    """A barrier, or a rollback to the last one."""

    is_rollback: bool


Action = Put | PutTimed | End

ORDINALS = st.integers(0, len(SPLITS) - 1)
ACTIONS: st.SearchStrategy[list[Action]] = st.lists(
    st.one_of(
        st.builds(
            Put,
            st.sampled_from([PLAIN, OTHER]),
            ORDINALS,
            st.dictionaries(KEYS, VALUES, max_size=5),
        ),
        st.builds(PutTimed, ORDINALS, st.dictionaries(st.tuples(TIMES, KEYS), VALUES, max_size=5)),
        st.builds(End, st.booleans()),
    ),
    max_size=30,
)


def write(tables: TaskTables, action: Put | PutTimed) -> None:
    split = tables.ordinal(SPLITS[action.split])
    if isinstance(action, Put):
        keys, values = list(action.entries), list(action.entries.values())
        tables.table(action.table).put(split, keys, values)
        return
    times = [time_ms for time_ms, _ in action.entries]
    keys = [key for _, key in action.entries]
    tables.timed_table(TIMED).put(split, times, keys, list(action.entries.values()))


def read(tables: TaskTables, keys: Sequence[bytes], until_ms: int) -> list[object]:
    """All that the contract lets somebody see."""
    found: list[object] = []
    for key in SPLITS:
        split = tables.ordinal(key)
        for number in (PLAIN, OTHER):
            table = tables.table(number)
            found += [table.get(split, keys), table.get(split, [])]
            found += [sorted(table.scan(split, prefix)) for prefix in (b"", b"a", b"ab", b"\xff")]
        timed = tables.timed_table(TIMED)
        times = [time_ms for time_ms in (-1, 0, 5, 2**62) for _ in keys]
        found += [timed.get(split, times, [*keys] * 4), timed.earliest_ms(split)]
        found += [list(timed.due(split, until)) for until in (-1, 5, until_ms)]
    return found


@given(ACTIONS, st.lists(KEYS, max_size=4, unique=True), TIMES)
def test_tables_equal_plain_dicts_at_every_step(
    actions: list[Action], keys: list[bytes], until_ms: int
) -> None:
    real = TaskState(MemoryBackend(memory_bytes=64 << 20), load=lambda *_: None, overlay_mib=1)
    real.add_splits(dict.fromkeys(SPLITS))
    plain = PlainTables(SPLITS)
    for action in actions:
        if isinstance(action, End):
            if action.is_rollback:
                real.rollback()
                plain.rollback()
            else:
                real.end_epoch()
                plain.end_epoch()
        else:
            write(real, action)
            write(plain, action)
        assert read(real, keys, until_ms) == read(plain, keys, until_ms)
    real.close()
