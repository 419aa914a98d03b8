"""Jobs that go on with state that was repartitioned, or whose variables name schema files."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from typer.testing import CliRunner

from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.spark.state.state_cli import app
from tests.integration.test_restores import (
    KEYS,
    PARTITIONS,
    Bed,
    bed,
    counted,
    moved,
    newest,
    origin_in,
    records,
)
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce

__all__ = ["bed"]

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_FIRST, _SECOND = range(60), range(60, 100)


class _Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(
        self, key: tuple[bytes, ...], rows: Iterator[pd.DataFrame], timerValues: object
    ) -> Iterator[pd.DataFrame]:
        count = (self._count.get() or (0,))[0] + sum(map(len, rows))
        self._count.update((count,))
        yield pd.DataFrame({"key": [bytes(key[0])], "value": [str(count)]})

    def close(self) -> None:
        """Nothing is open."""


def _with_variable(frame: DataFrame) -> DataFrame:
    keyed = frame.select("key").groupBy("key")
    return keyed.transformWithStateInPandas(_Count(), "key binary, value string", "Update", "None")


@pytest.mark.parametrize("transform", [counted, _with_variable])
@pytest.mark.parametrize("partitions", [None, 1, 5])
def test_a_restored_job_counts_on(
    bed: Bed, topic: TopicFactory, transform: object, partitions: int | None
) -> None:
    """From a moved savepoint, with as many state partitions as before, fewer or more; the first
    directories are gone. Then the new job starts again by itself."""
    source, first, second = topic(partitions=PARTITIONS), topic(), topic()
    produce(bed.kafka.bootstrap, source, records(_FIRST))
    bed.run(bed.path / "old", source, first, kind="state", transform=transform)
    origin = origin_in(bed.path / "old", "savepoint")
    if partitions is not None:
        origin = _repartitioned(origin, partitions, Path(f"{bed.path / 'old'}-savepoints"))
    origin = moved(bed.path / "old", origin)
    before = open_savepoint(origin).record
    produce(bed.kafka.bootstrap, source, records(_SECOND))
    new = {"kind": "state", "transform": transform, "restore_from": origin}
    bed.run(bed.path / "new", source, second, **new)
    assert bed.output(second, "state") == _counts([*_FIRST, *_SECOND])
    for at, now in zip(before.regions, newest(bed.path / "new").regions, strict=True):
        assert at.state is not None
        assert now.state is not None
        assert now.state.state_partitions == at.state.state_partitions == (partitions or 2)
    produce(bed.kafka.bootstrap, source, records(range(7)))
    bed.run(bed.path / "new", source, second, kind="state", transform=transform)
    assert bed.output(second, "state") == _counts([*_FIRST, *_SECOND, *range(7)])


def _repartitioned(origin: str, partitions: int, to: Path) -> str:
    arguments = ["repartition", origin, "--partitions", str(partitions), "--to", str(to)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return result.output.splitlines()[-1]


def _counts(numbers: list[int]) -> list[bytes]:
    counts = Counter(b"k%d" % (n % KEYS) for n in numbers)
    return sorted(b"%s=%d" % each for each in counts.items())
