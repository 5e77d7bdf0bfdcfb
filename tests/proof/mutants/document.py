"""The table of mutants in docs/proof.md, from the catalogue and the kept killers.

with_table(text, mutants, kept) -> the text with the table between its two marks
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.proof.mutants.attack import Kill, SimulatorKill
from tests.proof.mutants.killers import Killers
from tests.proof.mutants.mutant import LOGICAL_SIM, RIVALS, SIM, Mutant
from tests.support.folders import ROOT

PATH = ROOT / "docs/proof.md"
BEGIN = "<!-- The table of mutants; python -m tests.proof.mutants --document writes it. -->"
END = "<!-- The end of the table of mutants. -->"
# A rule's page and the heading on it; a page that the documents do not have gets no link.
SECTIONS = {
    "members change": "steps.md#members-change",
    "check of the primary": "steps.md#check-of-the-primary",
}
NAMES = {SIM: "simulator", LOGICAL_SIM: "simulator of logical logs", RIVALS: "rivals"}


def with_table(text: str, mutants: Sequence[Mutant], kept: Mapping[str, Killers]) -> str:
    """Return the document with its table. Raise ValueError if a mark is missing."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{BEGIN} and {END} have to stand in the document")
    return f"{before}{BEGIN}\n\n{_table(mutants, kept)}\n\n{END}{after}"


def _table(mutants: Sequence[Mutant], kept: Mapping[str, Killers]) -> str:
    kills = {mutant.name: kept.get(mutant.name, Killers()).all for mutant in mutants}
    named = [mutant for mutant in mutants if mutant.turns_red is not None]
    killed = [m for m in mutants if kills[m.name] or m.turns_red is not None]
    lines = [
        f"{len(mutants)} mutants, {len(killed)} killed: {len(killed) - len(named)} by a search "
        f"({sum(len(found) > 1 for found in kills.values())} of them by simulator and "
        f"exploration), {len(named)} by a named test.",
        "",
        "| rule | what was removed | killed by | took |",
        "|---|---|---|---|",
        *(_row(mutant, kills[mutant.name]) for mutant in mutants),
        "",
        "| why no search finds it | mutants |",
        "|---|---|",
        *_reasons(named),
    ]
    return "\n".join(lines)


def _row(mutant: Mutant, kills: Sequence[Kill]) -> str:
    by = "<br>".join(map(_shown, kills))
    took = "<br>".join(kill.took for kill in kills)
    if mutant.turns_red is not None:
        file, _, test = mutant.turns_red.partition("::")
        by, took = f"`{file.rsplit('/', 1)[1]}::{test}`", "the test"
    return (
        f"| {', '.join(map(_linked, mutant.rule.split(', ')))} | {mutant.removed} | {by} | {took} |"
    )


def _linked(rule: str) -> str:
    if re.fullmatch(r"[RM]\d+", rule):
        target = f"protocol.md#{rule.lower()}"
    elif rule.startswith("seed flaw"):
        target = "protocol.md#deviations-from-the-seed"
    else:
        target = SECTIONS.get(rule, "")
    page = PATH.parent / target.partition("#")[0]
    return f"[{rule}]({target})" if page.is_file() else rule


def _shown(kill: Kill) -> str:
    if not isinstance(kill, SimulatorKill):
        return f"exploration, {kill.world}"
    program, _, flags = kill.program.partition(" ")
    name = f"{NAMES[program]} `{flags}`" if flags else NAMES[program]
    return f"{name}, seed {kill.seed}: {kill.oracle}"


def _reasons(named: Sequence[Mutant]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for mutant in named:
        by_reason.setdefault(mutant.why_named, []).append(mutant.name)
    return [
        f"| {why} | {', '.join(names)} |"
        for why, names in sorted(by_reason.items(), key=lambda one: -len(one[1]))
    ]
