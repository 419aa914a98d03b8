"""Queries whose batches a callback writes, killed where the truth changes hands: each batch once.

One query in output mode update counts records per key with Spark's state. One writes its batches by
``df.write`` in a callback of the user, known by checkpoint location, sink and batch id.
"""

from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.beds import kills
from tests.chaos.programs import DROP_IN_COUNTS, FRAMES_DROP_IN
from tests.chaos.scenario import survive

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(2400)]

_HANDED_OVER = ("before-ack", "after-link", "mid-commit", "before-committed-mark", "before-return")
"""Before the decision, after it, between two commits, after all of them, and after their mark."""


def test_counts_in_update_mode_survive_a_kill_at_each_step(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """A batch without a decision is written again; of a decided one, only the state is."""
    survive(DROP_IN_COUNTS, kafka, tmp_path, kills(_HANDED_OVER))


def test_frames_of_a_callback_survive_a_kill_at_each_step(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The next run's first write of the sink finishes what was decided, and aborts the rest."""
    survive(FRAMES_DROP_IN, kafka, tmp_path, kills(_HANDED_OVER))
