"""The texts of a mirror's keys, which DDL may change without a change of a row.

    keys = MirroredKeys(notes, "s3://lake/shop")
    keys.refuse_others(table)           before a row of the table is written

A mirror finds a row by the text of its key. ALTER TYPE … RENAME VALUE gives the row another text.
Then the mirror's row of the old label would stay for ever. Contract: the notes have the labels and
the attributes of a key, and the table's file. Others of the same file are refused, but for a label
that was added. A key that prints names of objects is refused at once.
"""

from __future__ import annotations

import json
from typing import Protocol

from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.catalogs.key_texts import KeyTexts
from walkeeper_wal.wal_errors import HistoryError


class Notes(Protocol):
    """Texts by their names."""

    def keep(self, name: str, text: str) -> str: ...  # the text that was kept first
    def put(self, name: str, text: str) -> None: ...  # in place of an earlier one


class MirroredKeys:
    """The texts in the notes of a place."""

    def __init__(self, notes: Notes, shown: str) -> None:
        self._notes, self._shown = notes, shown
        self._last: dict[int, tuple[int, KeyTexts]] = {}

    def refuse_others(self, table: Table) -> None:
        """Note the key's labels and attributes. Raise HistoryError if they were others before."""
        texts = table.key_texts
        if texts.has_names:
            raise HistoryError(
                f"{table.shown}: its primary key ({', '.join(table.key)}) prints names of "
                "objects, such as regclass does. Another name of an object changes the key's text "
                "and no row, so a mirror finds no row by it: use --mode append"
            )
        own = table.file.relfilenode, texts
        if not (texts.labels or texts.parts) or self._last.get(table.oid) == own:
            return
        labels = {str(oid): label for oid, label in texts.labels}
        parts = {str(oid): list(places) for oid, places in texts.parts}
        note = {"file": table.file.relfilenode, "labels": labels, "parts": parts}
        name = f"{table.oid}.key"
        before = json.loads(self._notes.keep(name, json.dumps(note)))
        if before["file"] == note["file"]:
            self._refuse(table, before["labels"], labels)
            if before["parts"] != parts:
                raise self._refusal(table, "composite types in its primary key have other parts")
            note["labels"] = before["labels"] | labels
        if before != note:
            self._notes.put(name, json.dumps(note))
        self._last[table.oid] = own

    def _refuse(self, table: Table, before: dict[str, str], labels: dict[str, str]) -> None:
        for oid, label in labels.items():
            if (first := before.get(oid, label)) != label:
                raise self._refusal(
                    table, f"label {first!r} of an enum in its primary key is now {label!r}"
                )

    def _refusal(self, table: Table, what: str) -> HistoryError:
        return HistoryError(
            f"{table.shown}: {what}. Rows in {self._shown} have the earlier text, and WAL has no "
            "change of them, so a mirror does not follow this; begin anew with another --to"
        )
