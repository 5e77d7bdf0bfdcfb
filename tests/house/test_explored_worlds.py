"""docs/proof.md names each world of the exploration once: in its table, or as not yet searched."""

from __future__ import annotations

import re

from tests.proof.explore.runs import ALL
from tests.support.folders import ROOT

WORDS = ("None", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
SENTENCE = re.compile(
    r"`make prove` runs (\d+) worlds,.*?The table has the (\d+) that were searched to their end\. "
    r"(\w+) (?:was|were) not yet: (.*?)\.(?:\s|$)",
    re.DOTALL,
)


def exploration() -> str:
    page = (ROOT / "docs" / "proof.md").read_text()
    return page.split("\n## Exhaustive exploration\n")[1].split("\n## ")[0]


def worlds_of_the_table() -> list[str]:
    rows = exploration().split("\n| world |")[1].split("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].replace("\\*", "").strip() for row in rows]


def test_each_world_is_in_the_table_or_named_as_not_yet_searched() -> None:
    text = " ".join(exploration().split())
    found = SENTENCE.search(text)
    assert found is not None, "the sentence that counts the worlds"
    every, ended, count, listed = found.groups()
    waiting = re.findall(r"`([\w-]+)`", listed)
    table = worlds_of_the_table()
    assert sorted([*table, *waiting]) == sorted(ALL)
    assert (int(every), int(ended)) == (len(ALL), len(table))
    assert count == WORDS[len(waiting)]
