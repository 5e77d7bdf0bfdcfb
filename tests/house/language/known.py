"""The list of the violations that are there already: it may only shrink.

An entry is a hash of rule and sentence, without file and line, so that moved or newly wrapped text
changes nothing. Two violations with one hash would be one entry: harmless, both must go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tests.house.language.rules import Violation
from tests.house.language.sentences import normalised

KNOWN = Path(__file__).parent / "known.txt"
DIGITS = 10
HEAD = (
    "# Sentences that break a language rule and wait for a rewrite: hashes, which only go.\n"
    "# `python -m tests.house.language` shows them; `--shrink` drops those that are mended.\n"
)


def key(violation: Violation) -> str:
    """Return the entry of a violation: the same wherever the sentence stands."""
    text = f"{violation.rule.value}\0{normalised(violation.sentence)}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def load(path: Path = KNOWN) -> frozenset[str]:
    """Return the entries of a list."""
    lines = path.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def save(entries: Iterable[str], path: Path = KNOWN) -> None:
    """Write a list, sorted, so that two branches that shrink it seldom meet."""
    path.write_text(HEAD + "".join(f"{entry}\n" for entry in sorted(set(entries))))
