"""The newcomer's path of CONTRIBUTING.md: each file that it names has what the path names in it."""

from __future__ import annotations

import ast
import re

from tests.support.folders import ROOT

ROW = re.compile(r"^\| (\d+) \| `([^`]+)`: ([^|]+) \|", re.MULTILINE)
MINUTES_MAX = 10
WORDS_A_MINUTE = 230
STATED = re.compile(r"about ([\d,]+) words")


def section() -> str:
    _, _, after = (ROOT / "CONTRIBUTING.md").read_text().partition("## The first ten minutes\n")
    return after.partition("\n## ")[0]


def rows() -> list[tuple[int, str, list[str]]]:
    """Return minutes, file and names of each step."""
    text = section()
    found = [
        (int(m), file, re.findall(r"`([^`]+)`", names)) for m, file, names in ROW.findall(text)
    ]
    assert len(found) == len(re.findall(r"^\| \d", text, re.MULTILINE)), f"{found=}"
    return found


def stands_in(name: str, file: str) -> bool:
    """Return True if the file defines a function of this name, or has a heading or line of it."""
    text = (ROOT / file).read_text()
    function = rf"^    def {re.escape(name)}\("
    patterns = {
        ".md": rf"^#+ {re.escape(name)}\b",
        ".txt": rf"^{re.escape(name)}$",
        "mutants/voting.py": rf'^        "{re.escape(name)}",$',
    }
    pattern = next((each for end, each in patterns.items() if file.endswith(end)), function)
    return re.search(pattern, text, re.MULTILINE) is not None


def test_each_step_of_the_path_exists_and_all_take_ten_minutes() -> None:
    steps = rows()
    missing = [(file, n) for _, file, names in steps for n in names if not stands_in(n, file)]
    assert not missing
    assert len(steps) >= 7 and sum(minutes for minutes, _, _ in steps) <= MINUTES_MAX


def read_at(name: str, file: str) -> str:
    """Return the text that a reader reads for one name of the path."""
    text = (ROOT / file).read_text()
    if file.endswith(".txt"):
        return text
    if file.endswith(".md"):
        found = re.search(rf"^#+ {re.escape(name)}\b.*?(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    elif "mutants" in file:
        found = re.search(
            rf'"{re.escape(name)}",.*?(?=^    Mutant)', text, re.MULTILINE | re.DOTALL
        )
    else:
        tree = ast.parse(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        source = next(node for node in functions if node.name == name)
        return ast.get_source_segment(text, source) or ""
    assert found, f"{file}: {name}"
    return found[0]


def words_of_the_path() -> int:
    """Count the words of the path: its own text, the named parts, and the modules' docstrings."""
    texts = [section()]
    for _, file, names in rows():
        texts += [read_at(name, file) for name in names]
        if file.endswith(".py"):
            texts.append(ast.get_docstring(ast.parse((ROOT / file).read_text())) or "")
    return sum(len(re.findall(r"[\w./]+", text)) for text in texts)


def test_the_path_is_read_in_ten_minutes() -> None:
    stated = STATED.search(section())
    assert stated, "the section says how many words the path has"
    words = words_of_the_path()
    assert words <= MINUTES_MAX * WORDS_A_MINUTE
    assert abs(words - int(stated[1].replace(",", ""))) <= words / 10, f"{words=}"


def test_a_name_that_is_gone_is_seen() -> None:
    assert not stands_in("on_vote", "safekeeper/walkeeper_safekeeper/consensus/acceptor.py")
    assert not stands_in("Guarantee", "README.md")
