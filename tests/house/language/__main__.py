"""`python -m tests.house.language`: show what breaks a language rule, or count it by folder."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.house.language.rules import Rule
from tests.house.language.tree import Found, broken

FOLDER_PARTS = 2


def main() -> None:
    """Show the violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.language", description=__doc__)
    parser.add_argument("paths", nargs="*", help="Show these files and folders alone.")
    parser.add_argument("--count", action="store_true", help="Show a table by folder.")
    chosen = parser.parse_args()
    wanted = tuple(
        found
        for found in broken()
        if not chosen.paths or any(within(found.path, path) for path in chosen.paths)
    )
    shown = table(wanted) if chosen.count else "\n".join(map(str, wanted))
    sys.stdout.write(f"{shown}\n")


def within(path: str, wanted: str) -> bool:
    """Return True if the path is the wanted one or lies below it."""
    return Path(path).is_relative_to(wanted)


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
