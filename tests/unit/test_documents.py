"""Links of the documents lead somewhere: relative ones to files, ``#anchors`` to headings; and what
they name exists: pages, metrics, commands of the Makefile."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sluice.runtime.coordinator.core.core import JobStatus
from sluice.runtime.service.metrics import CheckpointMetrics, RegionMetrics

ROOT = Path(__file__).parents[2]
TREES = ("benchmarks", "connectors", "docker", "docs", "examples", "runtime", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for tree in TREES for page in (ROOT / tree).rglob("*.md"))]
)

_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^ *\2[`~]* *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^()\s>]+(?:\([^()\s]*\)[^()\s>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINED = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_NAMED = re.compile(r"docs/[\w/-]+\.md")


def links(text: str) -> list[str]:
    """Targets of what is a link or an image, in code neither."""
    prose = _CODE.sub("", _FENCE.sub("", text))
    return _LINK.findall(prose) + _DEFINED.findall(prose)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings; a repeated one gets a number."""
    seen: dict[str, int] = {}
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        times = seen.get(name, 0)
        seen[name] = times + 1
        found.add(f"{name}-{times}" if times else name)
    return found


def broken(page: Path) -> Iterator[str]:
    """Relative links of a page that lead nowhere."""
    for link in links(page.read_text("utf-8")):
        if _SCHEME.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if path.startswith("/") or not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Also behind a page that was renamed, or a section that was moved."""
    assert list(broken(page)) == []


def test_every_page_that_the_code_names_exists() -> None:
    """Messages and docstrings send people there."""
    named = {
        name
        for tree in ("benchmarks", "connectors", "examples", "runtime")
        for module in (ROOT / tree).rglob("*.py")
        for name in _NAMED.findall(module.read_text("utf-8"))
    }
    assert named
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_every_page_of_the_documentation_is_reached_from_the_readme() -> None:
    """By links, over other pages too: what nobody links to, nobody reads."""
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = (link.partition("#")[0] for link in links(page.read_text("utf-8")))
        paths = ((page.parent / target).resolve() for target in targets if target.endswith(".md"))
        waiting += [path for path in paths if path.is_file()]
    assert sorted(set((ROOT / "docs").rglob("*.md")) - reached) == []


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    """Of each kind; and what only looks like a link is none."""
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One `two`, three\n\n## Again\n\n## Again\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#one-two-three) [c](#here) ![d](gone.svg)\n"
        "[e](other.md#again-1) [f](other.md#again-2) [g](#nowhere) [h](https://a.example/x#y)\n"
        "[i](/other.md) `[j](code.md)` ``[k](`code`.md)``\n\n```md\n[l](fence.md)\n# Fence\n```\n"
        "[m](#fence)\n\n[n]: defined.md\n"
    )
    assert sorted(each.partition(":")[0] for each in broken(page)) == [
        "#fence",
        "#nowhere",
        "/other.md",
        "defined.md",
        "gone.svg",
        "other.md#again-2",
    ]


def uneven_rows(text: str) -> Iterator[int]:
    """Numbers of lines that have other columns than the head of their table."""
    width = None
    prose = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else None
        width = None if cells is None else width or cells
        if cells != width:
            yield number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_a_table_have_its_columns(page: Path) -> None:
    """A cell with a bare ``|`` moves those behind it, and the last one is not shown."""
    assert list(uneven_rows(page.read_text("utf-8"))) == []


class NoJob:
    """Whose coordinator has not started."""

    started = None

    def status(self) -> JobStatus:
        """Nobody asks."""
        raise AssertionError


def test_the_page_on_monitoring_names_every_metric_and_no_other() -> None:
    """As a scraper sees them; other pages name none that is not there."""
    registry = CollectorRegistry()
    CheckpointMetrics(registry)
    exposed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in (*registry.collect(), *RegionMetrics(NoJob()).collect())
    }
    name = re.compile(r"\bsluice_(?:region|checkpoint|offsets|function|last)\w*")
    named = {
        page: set(name.findall(page.read_text("utf-8"))) for page in (ROOT / "docs").glob("*.md")
    }
    assert named[ROOT / "docs" / "monitoring.md"] == exposed
    assert set[str]().union(*named.values()) == exposed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_command_that_a_page_names_exists(page: Path) -> None:
    """In code, where it is meant to be typed."""
    text = page.read_text("utf-8")
    codes = [found[0] for found in _FENCE.finditer(text)]
    codes += [found[0] for found in _CODE.finditer(_FENCE.sub("", text))]
    named = {name for code in codes for name in re.findall(r"[`\n]make ([a-z-]+)", code)}
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert named - goals == set()
