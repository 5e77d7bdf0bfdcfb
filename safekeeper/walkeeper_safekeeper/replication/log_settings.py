"""Settings entries of a logical log: the source of the changes, the stream's options. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused


def check_publications(asked: Collection[str], here: Collection[str]) -> None:
    """Raise SqlRefused 42704 unless `asked` are exactly the publications of the log."""
    if set(asked) != set(here):
        listed = ", ".join(here)
        raise SqlRefused(
            "42704",
            f"this log has publications {listed}, not {', '.join(asked)}",
            hint=f"Ask for exactly: {listed}. ALTER PUBLICATION on the primary changes what they "
            "have, and REFRESH PUBLICATION follows. For others make a log of their own: walkeeper "
            "create --logical and proposer --logical --publication NAME with another --cluster. "
            "ALTER SUBSCRIPTION … CONNECTION names it.",
        )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The content of a settings entry: the source of the changes and the options of its stream."""

    publications: tuple[str, ...]
    database: str
    options: dict[str, str]
    slots: dict[str, Lsn]
    tables: tuple[tuple[str, str], ...] = ()  # (schema, name), in a segment's first settings
    answered: tuple[str, ...] = ()  # the queries that this entry alone answers
    encoding: str = ""  # the database's own; the log is in UTF-8
    clashing: tuple[tuple[str, str], ...] = ()  # tables whose column lists differ, in an answer

    @classmethod
    def parse(cls, payload: Buffer, before: LogSettings | None = None) -> LogSettings:
        """Parse an entry, which keeps the tables of `before` if it names none. Raise CorruptWal."""
        known = before.tables if before is not None else ()
        try:
            document = json.loads(bytes(payload))
            tables = document.get("tables")
            return cls(
                publications=tuple(document["publications"]),
                database=document.get("database", ""),
                answered=tuple(str(token) for token in document.get("answered", ())),
                encoding=str(document.get("encoding", "")),
                options=document["options"],
                slots={name: Lsn.parse(lsn) for name, lsn in document.get("slots", {}).items()},
                tables=known if tables is None else _names(tables),
                clashing=_names(document.get("clashing", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as e:
            raise CorruptWal(f"a settings entry that cannot be read: {e!r}") from e


def _names(tables: Iterable[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((one[0], one[1]) for one in tables)
