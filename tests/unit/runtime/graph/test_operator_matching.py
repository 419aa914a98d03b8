"""Operators of a checkpoint find those of the job that restores it: by uid, id, then name."""

from collections.abc import Mapping

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph
from sluice.runtime.graph.operator_matching import MatchedBy, match_operators
from sluice.runtime.model.checkpoint_record import OperatorNode

SOURCE = OperatorSpec(kind="source", name="kafka-orders")
STEP = OperatorSpec(kind="transform", name="kafka-orders-transform", upstream=(0,))
SINK = OperatorSpec(kind="sink", name="out", upstream=(1,))
BEFORE = build_graph([SOURCE, STEP, SINK])


def found(
    before: tuple[OperatorNode, ...],
    now: tuple[OperatorNode, ...],
    *,
    topics: Mapping[str, str] | None = None,
    by_name: bool = True,
) -> list[tuple[str, str, str]]:
    with_state = {node.operator_id for node in before}
    matches = match_operators(
        before, now, with_state=with_state, topics=topics or {}, by_name=by_name
    )
    return [(match.before.name, match.now.name, match.by.value) for match in matches]


def test_the_same_job_matches_by_ids() -> None:
    names = ["kafka-orders", "kafka-orders-transform", "out"]
    assert found(BEFORE, BEFORE) == [(name, name, "id") for name in names]


def test_a_uid_outlives_name_and_position() -> None:
    old = build_graph([OperatorSpec(kind="source", name="a", uid="in")])
    new = build_graph([OperatorSpec(kind="source", name="b", uid="in")])
    assert found(old, new) == [("a", "b", MatchedBy.UID.value)]


def test_a_name_matches_after_the_inputs_have_changed() -> None:
    """A function between source and sink changes the sink's id."""
    clean = OperatorSpec(kind="transform", name="clean", upstream=(0,))
    sink = OperatorSpec(kind="sink", name="out", upstream=(1,))
    new = build_graph([SOURCE, clean, sink])
    assert found(BEFORE, new) == [("kafka-orders", "kafka-orders", "id"), ("out", "out", "name")]
    assert found(BEFORE, new, by_name=False) == [("kafka-orders", "kafka-orders", "id")]


def test_a_name_does_not_join_different_uids_or_kinds() -> None:
    """Two uids say that these are two operators."""
    old = build_graph([OperatorSpec(kind="source", name="a", uid="in-1")])
    other = build_graph([OperatorSpec(kind="source", name="a", uid="in-2")])
    sink = build_graph([OperatorSpec(kind="sink", name="a")])
    assert found(old, other) == found(old, sink) == []
    assert found(old, build_graph([OperatorSpec(kind="source", name="a")])) == [("a", "a", "name")]


def test_a_uid_of_another_kind_is_no_match() -> None:
    old = build_graph([OperatorSpec(kind="source", name="a", uid="x")])
    assert found(old, build_graph([OperatorSpec(kind="sink", name="b", uid="x")])) == []


def test_renamed_topics_rename_sources_and_what_is_named_after_them() -> None:
    now = build_graph(
        [
            OperatorSpec(kind="source", name="kafka-eu-orders,b"),
            OperatorSpec(kind="transform", name="kafka-eu-orders,b-transform", upstream=(0,)),
            SINK,
        ]
    )
    old = build_graph(
        [
            OperatorSpec(kind="source", name="kafka-us-orders,a"),
            OperatorSpec(kind="transform", name="kafka-us-orders,a-transform", upstream=(0,)),
            SINK,
        ]
    )
    topics = {"us-orders": "eu-orders", "orders": "x", "a": "b"}
    assert [(new, by) for _, new, by in found(old, now, topics=topics)] == [
        ("kafka-eu-orders,b", "name"),
        ("kafka-eu-orders,b-transform", "name"),
        ("out", "name"),
    ]


def test_a_name_that_the_user_gave_stays_although_it_is_that_of_a_topic() -> None:
    old = build_graph([OperatorSpec(kind="source", name="orders", uid="x")])
    new = build_graph([OperatorSpec(kind="source", name="orders")])
    assert found(old, new, topics={"orders": "eu"}) == [("orders", "orders", "name")]


def test_an_ambiguous_name_is_refused_where_there_is_state() -> None:
    old = build_graph([OperatorSpec(kind="sink", name="out", uid=uid) for uid in "ab"])
    new = build_graph([OperatorSpec(kind="sink", name="out")])
    with pytest.raises(ConfigError, match=r"several operators have the name.*name=out"):
        found(old, new)
    assert match_operators(old, new, with_state=set(), topics={}) == ()
