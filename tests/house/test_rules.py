"""The rules of docs/protocol.md, what cites them, and the links of every document.

A rule has a number, a statement and four lines. Tests and mutants that it names exist, and every
rule that is cited is defined.
REWRITE=1 pytest writes each rule's mutants, as `tests/proof/mutants` has them, into the page.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from tests.proof.mutants.catalogue import MUTANTS
from tests.support.folders import PRODUCT, ROOT
from walkeeper_common.wire.framing import Message

PAGE = ROOT / "docs" / "protocol.md"
PROMISES = ROOT / "docs" / "proof.md"
CITING = (*PRODUCT, "tests", "docs", "docker")
SUFFIXES = (".py", ".md", ".txt", ".toml", ".yml", ".yaml", ".sh", ".json")
COLUMNS = 125
LINES = ("Durable first", "Invariant", "Tests", "Mutants")
TO_COME = "to come"
EXPECTED = [*(f"R{number}" for number in range(1, 27)), *(f"M{number}" for number in range(1, 9))]
# R1, R2, … are records in the stories and their words, which cite as "rule R9".
STORIES = re.compile(r"tests/consensus/|tests/support/cluster_(stage|players|oracle)\.py")
CITED = re.compile(r"(?<![\w/-])[RM][1-9][0-9]?\b")
CITED_IN_STORIES = re.compile(r"\brules? (R\d+(?:(?:,| and|, and| to) R\d+)*)")
NUMBER_ALONE = re.compile(r"\brules? \d", re.IGNORECASE)
ELSEWHERE = re.compile(r"\b(PROTOCOL|INTERFACE)" + r"\.md")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENT = re.compile(r"\bdocs/[\w./-]+\.md(?:#[\w-]+)?")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the page; `lines` are its lines by their first words, `text` is all of it."""

    name: str
    text: str
    statement: str
    lines: dict[str, str]

    @property
    def is_to_come(self) -> bool:
        return self.lines.get("Status", "").startswith(TO_COME)

    def named(self, line: str) -> list[str]:
        """Return what the line names in backticks."""
        return re.findall(r"`([^`]+)`", self.lines[line])


def rules(page: str) -> dict[str, Rule]:
    """Return the page's rules by their numbers, in its order."""
    found: dict[str, Rule] = {}
    for section in re.split(r"^(?=### [RM]\d|## )", page, flags=re.MULTILINE):
        heading = re.match(r"### ([RM]\d+) (.+)\n", section)
        if heading is not None:
            assert heading[1] not in found, f"{heading[1]} is there twice"
            found[heading[1]] = _rule(heading[1], section, section[heading.end() :])
    return found


def _rule(name: str, text: str, body: str) -> Rule:
    body = body.partition("<a id=")[0]
    statement, lines = body, dict[str, str]()
    for item in re.finditer(r"^\* ([A-Z][a-z]+(?: first)?): (.*(?:\n  .*)*)", body, re.MULTILINE):
        statement = statement.replace(item[0], "")
        lines[item[1]] = " ".join(item[2].split())
    return Rule(name, text, statement.strip(), lines)


RULES = rules(PAGE.read_text())


def files() -> Iterator[Path]:
    """Yield the text files of the project that may cite or link."""
    yield from (ROOT / name for name in ("README.md", "Makefile", "pyproject.toml"))
    for folder in CITING:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield path


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def cited(path: Path, text: str) -> set[str]:
    """Return the numbers of the rules that the text cites."""
    if not STORIES.match(shown(path)):
        return set(CITED.findall(text))
    joined = re.sub(r"\n# ?", " ", text)
    return {name for list_ in CITED_IN_STORIES.findall(joined) for name in CITED.findall(list_)}


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = FENCE.sub("", path.read_text())
    return {slug(h) for h in HEADING.findall(text)} | set(ANCHOR.findall(text))


def flaw_of_link(base: Path, target: str) -> str | None:
    """Return why the target of a link in the folder `base` is not there, or None."""
    name, _, anchor = target.partition("#")
    path = (base / name).resolve()
    if not path.exists():
        return "no such file"
    if anchor and (path.suffix != ".md" or anchor not in anchors(path)):
        return "no such heading"
    return None


def test_the_page_has_every_rule_once_and_in_order() -> None:
    assert list(RULES) == EXPECTED
    text = PAGE.read_text()
    assert not [name for name in RULES if f'<a id="{name.lower()}"></a>\n### {name} ' not in text]


def test_the_page_has_every_message_once() -> None:
    """The wire protocol is written down here alone: a message without a row has no reader."""
    _, _, after = PAGE.read_text().partition("## Messages\n")
    listed = re.findall(r"^\| (\w+) \|", after.partition("\n## ")[0], re.MULTILINE)[1:]
    assert sorted(listed) == sorted(kind.__name__ for kind in get_args(Message))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_is_stated_and_says_how_it_is_checked(rule: Rule) -> None:
    assert len(rule.statement.split()) >= 8, f"{rule.name}: {rule.statement!r}"
    missing = [line for line in LINES if not rule.lines.get(line)]
    assert not missing, f"{rule.name} lacks {missing}"
    for line in ("Tests", "Mutants"):
        if rule.lines[line] == TO_COME:
            assert rule.is_to_come, f"{rule.name}: {line} {TO_COME}, and no such status"
        else:
            assert rule.named(line), f"{rule.name}: {line} names nothing"
    if rule.is_to_come:
        assert "Today: " in rule.lines["Status"], f"{rule.name}: what does the code do today?"
    for number in re.findall(r"\b[IPWDG]\d\b", rule.lines["Invariant"]):
        assert f"\n| {number} |" in PAGE.read_text(), f"{rule.name}: there is no {number}"


def is_there(name: str) -> bool:
    """Return True if the scenario, the test file, or the test in it exists."""
    if name.startswith("scenarios/"):
        return (ROOT / "tests/consensus" / name).is_file()
    file, _, function = name.partition("::")
    (path,) = (ROOT / "tests").rglob(file)
    return re.search(rf"^(async )?def {function}\b", path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_tests_and_mutants_that_a_rule_names_exist(rule: Rule) -> None:
    for name in rule.named("Tests") if rule.lines["Tests"] != TO_COME else ():
        assert is_there(name), f"{rule.name}: {name}"
    unknown = set(rule.named("Mutants")) - {mutant.name for mutant in MUTANTS}
    assert not unknown, f"{rule.name}: {unknown}"


def test_what_shows_a_promise_exists() -> None:
    section = PROMISES.read_text().partition("\n## Promise by promise\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!promise |--)(.+) \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) > 20
    for promise, shown_by in rows:
        names = re.findall(r"`([^`]+)`", shown_by)
        assert names, promise
        for name in names:
            if name.startswith("python -m "):
                module = name.split()[2].replace(".", "/")
                found = [ROOT / f"{module}.py", ROOT / module / "__main__.py"]
                assert any(path.is_file() for path in found), f"{promise}: {name}"
            else:
                assert is_there(name), f"{promise}: {name}"


def mutants_line(name: str) -> str | None:
    """Return the line for the mutants whose `rule` names this one, or None if there are none."""
    names = [f"`{m.name}`" for m in MUTANTS if name in re.findall(r"\b[RM]\d+\b", m.rule)]
    if not names:
        return None
    whole = f"* Mutants: {', '.join(names)}"
    return textwrap.fill(whole, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def test_a_rule_lists_the_mutants_that_take_it_out() -> None:
    text = PAGE.read_text()
    for rule in RULES.values():
        line = mutants_line(rule.name)
        if line is not None:
            right = re.sub(r"^\* Mutants:.*(?:\n  .*)*", line, rule.text, flags=re.MULTILINE)
            text = text.replace(rule.text, right)
    if os.environ.get("REWRITE"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "REWRITE=1 pytest tests/house/test_rules.py writes the lines"


def test_every_rule_that_is_cited_is_defined() -> None:
    unknown = [
        f"{shown(path)}: {name}"
        for path in files()
        for name in sorted(cited(path, path.read_text()) - set(RULES))
    ]
    assert not unknown, unknown


def test_a_rule_is_cited_by_its_name() -> None:
    """A number alone is no citation. Decisions are dated texts and stay as they were."""
    bare = []
    for path in files():
        text = path.read_text()
        if path == PAGE:
            text = text.partition("\n## Decisions\n")[0]
        if not shown(path).startswith("docs/adr/"):
            bare += [f"{shown(path)}: {found[0]}" for found in NUMBER_ALONE.finditer(text)]
    assert not bare, bare


def test_no_file_refers_to_a_text_that_is_not_in_the_repository() -> None:
    found = [shown(path) for path in files() if ELSEWHERE.search(path.read_text())]
    assert not found, found


@pytest.mark.parametrize("path", documents(), ids=shown)
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    broken = [
        f"{target}: {flaw}"
        for target in LINK.findall(FENCE.sub("", path.read_text()))
        if not re.match(r"[a-z]+:", target)
        and (flaw := flaw_of_link(path.parent, target) if target[0] != "#" else
             flaw_of_link(path.parent, path.name + target))
    ]  # fmt: skip
    assert not broken, f"{shown(path)}: {broken}"


def test_the_documents_that_the_source_names_exist() -> None:
    broken = [
        f"{shown(path)}: {target}: {flaw}"
        for path in files()
        if path.suffix != ".md"
        for target in DOCUMENT.findall(path.read_text())
        if (flaw := flaw_of_link(ROOT, target))
    ]
    assert not broken, broken
