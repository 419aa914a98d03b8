"""The list of what Spark's own Kafka suites and guide describe, and where it is checked here.

``pytest -rP`` on this module shows the counts.
"""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[4]
GUIDE = ROOT / "docs" / "guide"
LISTED = [
    tuple(line.split("\t"))
    for line in (ROOT / "tests" / "data" / "spark_conformance.tsv").read_text().splitlines()
    if not line.startswith("#")
]
SAME = 255  # at least


def test_every_behaviour_has_a_test_or_a_row_in_a_table_of_differences() -> None:
    """The test exists, and so does the row of the source's table or the sink's."""
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*def (test_\w+)", path.read_text(), flags=re.MULTILINE)
    }
    tables = [(GUIDE / f"kafka-{part}.md").read_text() for part in ("source", "sink")]
    rows = {
        row
        for text in tables
        for row in re.findall(r"^\| ([^|]+) \|", text.partition("## Differences")[2], re.MULTILINE)
    }
    for suite, behaviour, ours in LISTED:
        if ours.startswith("row: "):
            assert any(row.startswith(ours.removeprefix("row: ")) for row in rows), ours
        else:
            assert ours in tests, (suite, behaviour, ours)


def test_most_behaviours_are_sparks() -> None:
    assert all(len(entry) == 3 for entry in LISTED)
    assert len(LISTED) == len(set(LISTED)), "each is listed once"
    verdict = Counter(ours.startswith("row: ") for *_, ours in LISTED)
    print(f"same: {verdict[False]}, documented differences: {verdict[True]}")  # noqa: T201
    assert verdict[False] >= SAME
