"""The newcomer's path of CONTRIBUTING.md: each file that it names has what the path names in it."""

from __future__ import annotations

import re

from tests.support.folders import ROOT

ROW = re.compile(r"^\| (\d+) \| `([^`]+)`: ([^|]+) \|", re.MULTILINE)
MINUTES_MAX = 10


def rows() -> list[tuple[int, str, list[str]]]:
    """Return minutes, file and names of each step."""
    _, _, after = (ROOT / "CONTRIBUTING.md").read_text().partition("## The first ten minutes\n")
    section = after.partition("\n## ")[0]
    found = [
        (int(m), file, re.findall(r"`([^`]+)`", names)) for m, file, names in ROW.findall(section)
    ]
    assert len(found) == len(re.findall(r"^\| \d", section, re.MULTILINE)), f"{found=}"
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


def test_a_name_that_is_gone_is_seen() -> None:
    assert not stands_in("on_vote", "safekeeper/walkeeper_safekeeper/consensus/acceptor.py")
    assert not stands_in("Guarantee", "README.md")
