"""Operator ids: what restored state is matched by, for ever."""

from dataclasses import replace

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph, operator_id

SOURCE = OperatorSpec(kind="source", name="orders")
ENRICH = OperatorSpec(kind="map_batches", name="enrich", upstream=(0,))
SINK = OperatorSpec(kind="sink", name="out", upstream=(1,))

# Golden vectors: a change of any of these orphans the state of every job. Never edit them.
_A = "86ffbfce56ed0318068fe6cb32037cc9"
_B = "97f541801272f79b806a18f034dc32a5"
GOLDEN = {
    ("source", "orders", (), None): _A,
    ("map_batches", "enrich", (_A,), None): _B,
    ("sink", "out", (_B,), None): "9d2cd5c6ad7bb8808099c3c0a955550d",
    ("transform", "join", (_A, _B), None): "3a511d46f3bed9ecb97c720f2e99efd7",
    ("transform", "join", (_B, _A), None): "d590cd3a399ba4598f7ff6cc9dc5d467",
    ("sink", "out", (_B,), "my-sink"): "1b1972d43a70f2722d122f8aa6ab1c69",
    ("source", "Bestellungen ü", (), None): "9015d34809c08346540be82693c1e40b",
}


@pytest.mark.parametrize(("given", "expected"), GOLDEN.items())
def test_operator_ids_are_frozen(
    given: tuple[str, str, tuple[str, ...], str | None], expected: str
) -> None:
    """The rule of version 1 gives these ids in every later Sluice."""
    kind, name, upstream, uid = given
    assert operator_id(kind=kind, name=name, upstream=upstream, uid=uid) == expected


def test_id_is_the_same_whatever_follows() -> None:
    """After a sink was added, all state matches again."""
    before = build_graph([SOURCE, ENRICH, SINK])
    second_sink = OperatorSpec(kind="sink", name="audit", upstream=(0,))
    after = build_graph([SOURCE, ENRICH, SINK, second_sink])
    assert [node.operator_id for node in after[:3]] == [node.operator_id for node in before]
    assert after[3].upstream == (before[0].operator_id,)


def test_uid_keeps_the_id_through_renaming_and_moving() -> None:
    """With a uid, name, kind and place in the graph may change."""
    given = build_graph([SOURCE, replace(ENRICH, uid="e1")])
    moved = build_graph([OperatorSpec(kind="transform", name="new", uid="e1")])
    assert moved[0].operator_id == given[1].operator_id


def test_uid_and_path_never_collide() -> None:
    """A uid that looks like a name is another operator."""
    assert operator_id(kind="sink", name="x", upstream=(), uid="x") != operator_id(
        kind="sink", name="x", upstream=()
    )


def test_equal_names_without_uid_are_refused_and_both_named() -> None:
    """Else the second one's state would go to the first."""
    with pytest.raises(ConfigError) as refused:
        build_graph([SOURCE, ENRICH, replace(SINK, name="orders")])
    assert "source 'orders' (operator 1)" in str(refused.value)
    assert "sink 'orders' (operator 3)" in str(refused.value)
    build_graph([SOURCE, ENRICH, replace(SINK, name="orders", uid="out")])


def test_equal_uids_are_refused_and_both_named() -> None:
    """A uid belongs to one operator."""
    with pytest.raises(ConfigError, match="same uid 'u'") as refused:
        build_graph([replace(SOURCE, uid="u"), replace(ENRICH, uid="u")])
    assert "map_batches 'enrich' (operator 2)" in str(refused.value)


def test_renaming_a_source_renames_what_it_feeds() -> None:
    """Without a uid the id depends on everything upstream: that is why uids exist."""
    renamed = build_graph([replace(SOURCE, name="orders-2"), ENRICH])
    assert renamed[1].operator_id != build_graph([SOURCE, ENRICH])[1].operator_id
