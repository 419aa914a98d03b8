"""Finds sentences that need a second reading, in pages, docstrings, comments and messages.

Rewrite a sentence that is found: another word alone seldom helps. Text in backticks is not judged,
so quote a name that must stay. The exit code is 1 if docs or code have more findings than LIMITS
allow; tests and benchmarks are only counted.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MAX_WORDS = 28  # of a sentence
MIN_WORDS = 5  # of a message: a shorter string is a name or a value
LIMITS = {"long sentence": 6.0, "private word": 0.5, "vague actor": 0.4, "inversion": 0.3}
"""The most findings in 1,000 words, by kind."""
JUDGED = ("code", "docs")

PRIVATE_WORDS = {
    r"li(fe|ves)\sof\s(a|the|its)\s(region|task|query)"
    r"|(new|its)\sli(fe|ves)|(\ba|each)\slife\b": "attempt, restart",
    r"\bbehind\b": "after, following",
    r"\b(told|tells?|telling)\b": "reports, returns, shows, notifies",
    r"\b(bury|buried)\b": "write as dead letter",
    r"\b(courier|desk|hands)\b": "checkpoint client, barrier service, executor",
    r"\b(parked|parks?|parking)\b": "suspended",
    r"\bcarried\b|\bcarries\b(?= (it|(the|a) region))": "skipped, keeps its snapshot",
    r"\bdealt\b|\bdeals? (the|them|out|anew)": "assigned",
    r"\bby hand\b": "manually; by the coordinator",
    r"\b(anew|mend(ed)?)\b": "again; fix",
    r"\b(not heard|heard of)\b": "no heartbeat from",
    r"\b(aftercare|rulings?|blame)\b": "post-commit hook; failure policy; cause",
    r"\bset aside\b|\b(went?|goes|go|going) on\b": "continues, resumes",
    r"\bits place\b|\bplace is taken\b|\bin the place of\b": "slot; instead of",
    r"\bcut off\b": "truncated; partitioned (network)",
    r"\b(stands?|stood) still\b": "is paused, hangs",
}
VAGUE_ACTOR = (
    r"(?i)\b(whoever|nobody|somebody|anybody|the others"
    r"|who(?=\s(it|that|they|asks|sleeps|reads|writes|looks|wants|was|has|is))"
    r"|what\s(is|was|are|were|has|nobody|somebody|else|most))\b"
)
INVERSION = (
    r"^(What|Who|Whoever|Of|Where|To\swhom|Nor|Beside|Such"
    r"|So\s(is|it|do|does|are|has|have)|Not\s(built|recorded|bounded)) "
)
PATTERNS = [
    *(("private word", re.compile(f"(?i){word}"), term) for word, term in PRIVATE_WORDS.items()),
    ("vague actor", re.compile(VAGUE_ACTOR), "name the actor"),
    ("inversion", re.compile(INVERSION), "subject, verb, object"),
]
UNREAD = re.compile(r"#|<!--|!\[|[|:\- ]+$")  # headings, remarks, pictures, rules of tables
ITEM = re.compile(r"^\s*([-*]|\d+\.) ")
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
FOR_A_TOOL = re.compile(r"#(!| type:| noqa| ruff| pragma)")


def paragraphs(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Running text with its line; each item, entry of a docstring and cell stands alone."""
    found: list[tuple[int, list[str]]] = []
    is_new, is_code, entries = True, False, -1
    for number, raw in enumerate(text.splitlines(), first_line):
        line, indent = raw.strip(), len(raw) - len(raw.lstrip())
        is_fence = line.startswith(("```", "~~~"))
        is_code ^= is_fence
        entries = indent + 4 if SECTION.match(line) else entries if indent >= entries else -1
        if is_fence or is_code or not line or UNREAD.match(line) or SECTION.match(line):
            is_new = True
            continue
        is_table = line.startswith("|")
        for cell in line.strip("|").split("|") if is_table else [line]:
            if is_new or is_table or indent == entries or ITEM.match(cell):
                found.append((number, []))
            found[-1][1].append(ITEM.sub("", cell.strip("> "), count=1))
            is_new = is_table
    yield from ((number, " ".join(parts)) for number, parts in found)


class _Plain(ast.NodeTransformer):
    """Makes one constant of an f-string, with an X for each value."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
        return ast.copy_location(ast.Constant("".join(map(str, parts))), node)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and other strings of a module that are long enough for a sentence."""
    for node in ast.walk(_Plain().visit(ast.parse(source))):
        match node:
            case ast.Constant(value=str(text)) if len(text.split()) >= MIN_WORDS:
                yield node.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments of a module; those on successive lines are one text."""
    found: list[tuple[int, list[str]]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not FOR_A_TOOL.match(token.string):
            if not found or token.start[0] != found[-1][0] + len(found[-1][1]):
                found.append((token.start[0], []))
            found[-1][1].append(token.string.lstrip("# "))
    yield from ((line, "\n".join(texts)) for line, texts in found)


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph, with an X for code and its text for a link."""
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "X", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("__", "").replace("*", "")
    return [each for each in re.split(r"(?<=[.!?:;])\s+(?=[A-Z\"'(])", text.strip()) if each]


def judge(sentence: str) -> Iterator[tuple[str, str]]:
    """The kind of each finding in a sentence, and what to do."""
    if (words := len(sentence.split())) > MAX_WORDS:
        yield "long sentence", f"{words} words"
    for kind, pattern, advice in PATTERNS:
        for found in pattern.finditer(sentence):
            yield kind, f"{found[0].strip()} -> {advice}"


def group_of(name: str) -> str:
    """The group that a file is counted in."""
    top = name.partition("/")[0]
    return top if top in ("tests", "benchmarks") else "docs" if name.endswith(".md") else "code"


def files(paths: Sequence[str]) -> list[str]:
    """Pages and modules of this Git tree, and those that Git does not know yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    read = {name for name in listed.splitlines() if name.endswith((".md", ".py"))}
    return sorted(each for each in read if Path(each).is_file() and "tests/data/" not in each)


def prose(name: str) -> Iterator[tuple[int, str]]:
    """Sentences of a file with their lines."""
    source = Path(name).read_text("utf-8")
    texts = [(1, source)] if name.endswith(".md") else [*messages(source), *comments(source)]
    for line, paragraph in (each for first, text in texts for each in paragraphs(text, first)):
        yield from ((line, sentence) for sentence in sentences(paragraph))


def count(name: str, *, show: bool = False) -> Counter[str]:
    """Words of a file, and its findings by kind."""
    found = Counter[str]()
    for line, sentence in prose(name):
        found["words"] += len(sentence.split())
        for kind, why in judge(sentence):
            found[kind] += 1
            if show:
                print(f"{name}:{line}: {kind}: {why}: {sentence[:200]}")
    return found


def report(counts: Mapping[str, Counter[str]]) -> bool:
    """Prints the counts of each group and its worst files; true: docs and code keep the limits."""
    over = 0
    for group in sorted(set(map(group_of, counts))):
        members = {name: found for name, found in counts.items() if group_of(name) == group}
        total = sum(members.values(), Counter[str]())
        print(f"{group}: {total['words']:,} words")
        for kind, limit in LIMITS.items():
            rate = 1000 * total[kind] / max(1, total["words"])
            over += rate > limit and group in JUDGED
            print(f"  {kind}: {total[kind]}, {rate:.1f} in 1,000 words (limit {limit})")
        worst = Counter({name: one.total() - one["words"] for name, one in members.items()})
        for name, number in (+worst).most_common(5):
            print(f"  {number:6,} in {name}")
    return not over


def main() -> int:
    """Counts what the command line names, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders; all by default")
    parser.add_argument("--show", action="store_true", help="list each finding with its line")
    given = parser.parse_args()
    return 0 if report({name: count(name, show=given.show) for name in files(given.paths)}) else 1


if __name__ == "__main__":
    sys.exit(main())
