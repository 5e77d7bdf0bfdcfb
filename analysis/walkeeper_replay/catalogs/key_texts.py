"""Labels, objects and attributes, which the texts of a primary key follow beside its rows. Pure.

    key_texts(types, [the key's types]) -> KeyTexts

ALTER TYPE … RENAME VALUE gives a label another text, and a renamed table gives regclass one. A
composite value loses a part with DROP ATTRIBUTE. None of these changes a row. Contract: two
KeyTexts of the same labels and parts, and without names, have the same text for the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from walkeeper_replay.text.value_text import NAMED, Types


@dataclass(frozen=True, slots=True)
class KeyTexts:
    """See the module."""

    labels: tuple[tuple[int, str], ...] = ()
    """The labels of the key's enums by their OIDs."""
    parts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """By composite type: the places of its attributes that are not dropped."""
    has_names: bool = False
    """True if a part of the key prints as an object's name, such as regclass."""


PLAIN = KeyTexts()


def key_texts(types: Types, key: Iterable[int]) -> KeyTexts:
    """Return what the texts of these types follow."""
    found, waiting = set[int](), list(key)
    while waiting:
        oid = types.base_of(waiting.pop())
        if oid not in found:
            found.add(oid)
            waiting += types.parts(oid)
    known = [types.by_oid[oid] for oid in sorted(found) if oid in types.by_oid]
    has_enums = any(each.kind == "e" for each in known)
    labels = [
        (oid, types.labels[oid]) for oid, enum in types.enums.items() if enum in found
    ] if has_enums else []  # fmt: skip
    parts = [
        (each.oid, tuple(n for n, part in enumerate(types.fields[each.relation])
                         if not part.dropped))
        for each in known
        if each.kind == "c" and each.relation in types.fields
    ]  # fmt: skip
    if not labels and not parts and not found & NAMED.keys():
        return PLAIN
    return KeyTexts(tuple(sorted(labels)), tuple(parts), bool(found & NAMED.keys()))
