"""Mutants: every rule is taken out once, and an oracle has to notice.

    python -m tests.proof.mutants                       the table: rule, what was taken, its killers
    python -m tests.proof.mutants --only 'vote|cut'     of these only
    python -m tests.proof.mutants --find --minutes 2  look for killers, keep them in killers.json
    python -m tests.proof.mutants --document          write the table into docs/proof.md

A mutant is a patch to a copy of the shipping source. Only an oracle kills it, in that copy:

* exit code 2 or 3 of a program that runs stories by seed (`searched_by`): a simulator with its
  flags, or the rivals
* exit code 2 of `python -m tests.proof.explore`
* a failure of the test that `turns_red` names, where no search meets it soon

In a search an import error does not kill it, and neither does an assertion. The unpatched source,
the control, is green on the same seeds and worlds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.proof.mutants import document, killers, table
from tests.proof.mutants.catalogue import MUTANTS
from tests.proof.mutants.killer_search import find
from tests.proof.mutants.mutant import Mutant


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def chosen(only: str) -> list[Mutant]:
    wanted = re.compile(only)
    return [m for m in MUTANTS if wanted.search(m.name) or wanted.search(f"rule {m.rule}")]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="whose name or `rule R9` matches this REGEX")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--json", type=Path, help="write the table to this file as well")
    parser.add_argument("--find", action="store_true", help="look for killers and keep them")
    parser.add_argument("--minutes", type=float, default=2.0, help="for each mutant, with --find")
    parser.add_argument("--seeds", type=int, default=10**6, help="of each program, with --find")
    parser.add_argument("--missing", action="store_true", help="only where none kills any more")
    parser.add_argument("--from", type=int, default=0, dest="base", help="with --find: first seed")
    parser.add_argument("--document", action="store_true", help="write the table of docs/proof.md")
    parser.add_argument("--by", choices=("sim", "explore"), help="with --find: by this one only")
    arguments = parser.parse_args()
    if arguments.document:
        document.PATH.write_text(
            document.with_table(document.PATH.read_text(), MUTANTS, killers.load())
        )
        return 0
    mutants = chosen(arguments.only)
    if arguments.find:
        return find(
            mutants, minutes=arguments.minutes, seeds=arguments.seeds, jobs=arguments.jobs,
            base=arguments.base,
            by=arguments.by, missing_only=arguments.missing, tell=tell,
        )  # fmt: skip
    return make_table(mutants, arguments.jobs, arguments.json)


def make_table(mutants: Sequence[Mutant], jobs: int, path: Path | None) -> int:
    kept = killers.load()
    rows = []
    tell(table.HEAD)
    for row in table.rows(mutants, kept, jobs=jobs):
        rows.append(row)
        tell(str(row))
    control = table.control(mutants, kept)
    for line in control:
        tell(str(line))
    survived = [row for row in rows if not row.is_killed]
    red = [line for line in control if not line.is_green]
    tell(f"{len(rows)} mutants, {len(rows) - len(survived)} killed, {len(survived)} survived; "
         f"control {'red' if red else 'green'}")  # fmt: skip
    if path is not None:
        facts = {
            "mutants": [row.facts() for row in rows],
            "control": [line.facts() for line in control],
        }
        path.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if survived or red else 0


if __name__ == "__main__":
    sys.exit(main())
