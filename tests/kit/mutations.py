"""Strategies of bad input: what is nearly right, and what is not at all."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, 10**400, True]),
)
_TEXTS = st.text(max_size=6) | st.sampled_from(["", "\ud800", "\0", "NaN", "-1", "a-0", "Infinity"])
_OTHERS: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 10**400, 0.5, float("nan")),
    *("", "\ud800", "-1", [], [[]], [1, 2, 3], {}, {"a": 1}),
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Whatever Python's JSON reader may return; numbers beyond every width, and NaN."""

json_texts = json_values.map(json.dumps)
"""The same as text."""


@st.composite
def mutated_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with up to four changes: bytes replaced, left out, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        until = min(len(data), at + draw(st.integers(0, 8)))
        match draw(st.sampled_from(["replace", "leave out", "double", "cut"])):
            case "replace":
                data[at:until] = draw(st.binary(max_size=8))
            case "leave out":
                del data[at:until]
            case "double":
                data[at:at] = data[at:until]
            case _:
                del data[len(data) - (until - at) :]
    return bytes(data)


@st.composite
def mutated_json(draw: st.DrawFn, whole: Any) -> Any:
    """``whole`` with something else in one place, at any depth; or without it; or with more."""
    if not isinstance(whole, dict | list) or not whole or draw(st.integers(0, 3)) == 0:
        return draw(json_values)
    made = whole.copy()
    at = draw(st.sampled_from(list(made) if isinstance(made, dict) else range(len(made))))
    match draw(st.sampled_from(["inside", "inside", "leave out", "more"])):
        case "inside":
            made[at] = draw(mutated_json(made[at]))
        case "leave out":
            del made[at]
        case _ if isinstance(made, dict):
            made[draw(_TEXTS)] = draw(json_values)
        case _:
            made.append(draw(json_values))
    return made


def mutated_everywhere(whole: Any) -> Iterator[Any]:
    """``whole`` with something else in each place in turn, and without it; not at random, for of
    a hundred examples few get as far as the last row of a list in a list."""
    yield from _OTHERS
    if not isinstance(whole, dict | list):
        return
    for at in list(whole) if isinstance(whole, dict) else range(len(whole)):
        less = whole.copy()
        del less[at]
        yield less
        for other in mutated_everywhere(whole[at]):
            made = whole.copy()
            made[at] = other
            yield made
