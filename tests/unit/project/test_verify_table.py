"""What ``sluice verify`` shows to people, character by character."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.connectors.kafka.tools.verify.test_verify_command import app, written


@pytest.mark.parametrize("name", ["[bold]", "[/bold]", "[red", "\\[a]"])
def test_a_place_is_shown_as_it_is_spelt(tmp_path: Path, name: str) -> None:
    source = written(tmp_path / "in", ["a"])
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    output = written(tmp_path / "out" / name, ["a", "b"])
    words = ["--input", source, "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "500"})
    assert result.exit_code == 3, result.exception
    assert f"{output}/part.json-0@1" in result.stdout
