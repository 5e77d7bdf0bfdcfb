"""docs/proof.md has each world of the exploration once in its table, and no other."""

from __future__ import annotations

import re

from tests.proof.explore.runs import ALL
from tests.support.folders import ROOT


def exploration() -> str:
    page = (ROOT / "docs" / "proof.md").read_text()
    return page.split("\n## Exhaustive exploration\n")[1].split("\n## ")[0]


def worlds_of_the_table() -> list[str]:
    rows = exploration().split("\n| world |")[1].split("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].replace("\\*", "").strip() for row in rows]


def test_each_world_is_in_the_table_once() -> None:
    assert sorted(worlds_of_the_table()) == sorted(ALL)
    assert re.findall(r"`make prove` runs (\d+) worlds", exploration()) == [str(len(ALL))]
