"""Whether two sinks of ``format("sluice-kafka")`` may write to one topic."""

from sluice.connectors.kafka.kafka_sink import KafkaSink


def sink(**options: str) -> KafkaSink:
    return KafkaSink.from_options(
        {"kafka.bootstrap.servers": "fake:9092", "transactionalIdPrefix": "p", **options}
    )


def test_sinks_share_an_output_unless_their_topics_differ() -> None:
    """A column may name any topic, and the prefix says nothing of the output."""
    one, by_column = sink(topic="a"), sink()
    for other in (sink(topic="a", transactionalIdPrefix="q"), by_column):
        assert one.may_share_output(other.settings())
        assert other.may_share_output(one.settings())
    assert not one.may_share_output(sink(topic="b").settings())
    assert not by_column.may_share_output({"path": "/lake/a", "format": "parquet"})
