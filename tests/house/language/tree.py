"""The files of the repository that the language rules cover, and what they break."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.language import markdown_text, python_text
from tests.house.language.passages import Passage
from tests.house.language.rules import Violation, violations
from tests.support.folders import ROOT

# Not ours to write: what tools leave behind, and a text that is the same everywhere.
LEFT_OUT = ("build", "dist", "site", "node_modules", "CODE_OF_CONDUCT.md")
NO_OPERATOR = ("tests", "proof")


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    line: int
    violation: Violation

    def __str__(self) -> str:
        sentence = " ".join(self.violation.sentence.split())
        where = f"{self.path}:{self.line}: {self.violation.rule.value}"
        return f"{where}: {sentence}\n    {self.violation.mend}"


def files() -> list[Path]:
    """Return the Python and Markdown files of the repository, sorted."""
    return sorted(path for path in _below(ROOT) if path.suffix in (".py", ".md"))


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in LEFT_OUT or path.suffix == ".egg-info":
            continue
        if path.is_dir():
            yield from _below(path)
        else:
            yield path


def passages(path: Path) -> list[Passage]:
    """Return the passages of a file, by its suffix."""
    source = path.read_text()
    if path.suffix == ".md":
        return markdown_text.passages(source)
    top = path.relative_to(ROOT).parts[0]
    return python_text.passages(source, messages=top not in NO_OPERATOR)


def broken_in(path: Path) -> Iterator[Found]:
    """Yield what a file breaks, in the order of its lines."""
    for passage in passages(path):
        for violation in violations(passage.text, passage.kind):
            line = passage.line + passage.text.count("\n", 0, violation.offset)
            yield Found(str(path.relative_to(ROOT)), line, violation)


@cache
def broken() -> tuple[Found, ...]:
    """Return what the repository breaks; read it once (a few seconds)."""
    return tuple(found for path in files() for found in broken_in(path))
