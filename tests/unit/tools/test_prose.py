"""The check of prose finds what it should, on the right line, and holds docs and code to limits."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("sentence", "kinds"),
    [
        ("The coordinator commits the transaction.", []),
        ("The coordinator is told of it.", ["private word"]),
        ("A new life of the region was told.", ["private word", "private word"]),
        ("This is what was read, and nobody writes it.", ["vague actor", "vague actor"]),
        ("What the task wrote is durable.", ["inversion"]),
        ("Of each region one.", ["inversion"]),
        ("word " * 28, []),
        ("word " * 29, ["long sentence"]),
    ],
)
def test_a_sentence_is_judged(sentence: str, kinds: list[str]) -> None:
    assert [kind for kind, _ in prose.judge(sentence)] == kinds


def test_code_is_not_judged_and_a_link_counts_as_its_text() -> None:
    assert prose.sentences("**Call** `tell(x)`, ``told``. See [the page](told.md). end") == [
        "Call X, X.",
        "See the page. end",
    ]


PAGE = """\
# Told in a heading

First line
and second.

- item one
  goes further
- item two

| cell | other |
| --- | --- |
| `a` | what |

```
code
```
Last.
"""


def test_paragraphs_of_a_page_have_their_lines() -> None:
    assert list(prose.paragraphs(PAGE)) == [
        (3, "First line and second."),
        (6, "item one goes further"),
        (8, "item two"),
        (10, "cell"),
        (10, "other"),
        (12, "`a`"),
        (12, "what"),
        (17, "Last."),
    ]


MODULE = '''\
def run(a, b):
    """One sentence in a docstring.

    Args:
        a: first
            of two.
        b: second.
    """
    raise ValueError(f"the task of region {a} was lost", "short name")  # noqa: X - why


# A comment
# on two lines.
'''


def test_docstrings_messages_and_comments_of_a_module_are_read() -> None:
    """An f-string is one sentence; a short string and a comment for a tool are left out."""
    texts = [*prose.messages(MODULE), *prose.comments(MODULE)]
    assert [each for first, text in texts for each in prose.paragraphs(text, first)] == [
        (2, "One sentence in a docstring."),
        (5, "a: first of two."),
        (7, "b: second."),
        (9, "the task of region X was lost"),
        (12, "A comment on two lines."),
    ]


@pytest.mark.parametrize(
    ("name", "found", "is_kept"),
    [
        ("runtime/job.py", 4, False),
        ("docs/guide/job.md", 4, False),
        ("docs/guide/job.md", 1, True),
        ("tests/unit/test_job.py", 4, True),
        ("benchmarks/job.py", 4, True),
    ],
)
def test_docs_and_code_are_held_to_the_limits(name: str, found: int, is_kept: bool) -> None:
    assert prose.report({name: Counter({"words": 3000, "private word": found})}) is is_kept


def test_new_files_of_a_git_tree_are_read_and_ignored_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("built.md\n")
    (tmp_path / "built.md").write_text("Nobody reads it.\n")
    (tmp_path / "page.md").write_text("A word.\n\nNobody reads it.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prose", "--show"])
    assert prose.main() == 1
    shown = capsys.readouterr().out
    assert "page.md:3: vague actor: Nobody -> name the actor: Nobody reads it." in shown
    assert "built.md" not in shown
    (tmp_path / "page.md").write_text("The task reads it.\n")
    assert prose.main() == 0
