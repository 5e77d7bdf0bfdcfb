"""`python -m tests.house.language`: show what breaks a language rule, or shrink the list of it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.house.language import known
from tests.house.language.rules import Rule
from tests.house.language.tree import Found, broken

FOLDER_PARTS = 2


def main() -> None:
    """Run one of the four actions."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.language", description=__doc__)
    parser.add_argument("paths", nargs="*", help="Show these files and folders alone.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--count", action="store_true", help="Show a table by folder.")
    action.add_argument("--shrink", action="store_true", help="Drop mended sentences.")
    action.add_argument("--start", action="store_true", help="Make the list where there is none.")
    chosen = parser.parse_args()
    if chosen.shrink:
        shown = shrink({found.key for found in broken()})
    elif chosen.start:
        shown = start({found.key for found in broken()})
    elif chosen.count:
        shown = table(broken())
    else:
        shown = "\n".join(
            str(found)
            for found in broken()
            if not chosen.paths or any(within(found.path, path) for path in chosen.paths)
        )
    sys.stdout.write(f"{shown}\n")


def within(path: str, wanted: str) -> bool:
    """Return True if the path is the wanted one or lies below it."""
    return Path(path).is_relative_to(wanted)


def shrink(present: set[str], path: Path = known.KNOWN) -> str:
    """Drop the entries whose sentence is gone; never add one."""
    before = known.load(path)
    known.save(before & present, path)
    new = len(present - before)
    added = f"; {new} that are not in the list are NOT added: mend them" if new else ""
    return f"{len(before)} -> {len(before & present)} entries{added}"


def start(present: set[str], path: Path = known.KNOWN) -> str:
    """Make the list; exit with an error if there is one, since a list may only shrink."""
    if path.exists():
        raise SystemExit(f"{path.name} exists: the list may only shrink; use --shrink")
    known.save(present, path)
    return f"{len(present)} entries"


def table(all_found: tuple[Found, ...]) -> str:
    """Return the numbers of violations by folder and rule."""
    counts: dict[str, Counter[Rule]] = {}
    for found in all_found:
        folder = "/".join(Path(found.path).parts[:-1][:FOLDER_PARTS]) or "."
        for name in (folder, "all"):
            counts.setdefault(name, Counter())[found.violation.rule] += 1
    lines = [f"{'':36}" + "".join(f"{rule.value:>12}" for rule in Rule) + f"{'all':>8}"]
    for name in sorted(counts, key=lambda name: (name == "all", name)):
        cells = "".join(f"{counts[name][rule]:12}" for rule in Rule)
        lines.append(f"{name:36}{cells}{counts[name].total():8}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
