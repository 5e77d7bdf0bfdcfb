"""`walkeeper history report`: gathered, named with a server's help, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from walkeeper_cli.history_reading import Archive
from walkeeper_history.errors import HistoryError
from walkeeper_history.report_data import ReportData, gather
from walkeeper_history.report_page import render

NAMES = """
SELECT coalesce(nullif(c.reltablespace, 0), d.dattablespace)::bigint,
       CASE WHEN c.reltablespace = 1664 THEN 0 ELSE d.oid::bigint END,
       pg_relation_filenode(c.oid)::bigint,
       CASE WHEN c.relkind = 't' THEN 'TOAST of ' || coalesce(o.oid::regclass::text, '?')
            WHEN c.relkind = 'i' AND n.nspname = 'pg_toast'
            THEN 'TOAST index ' || c.relname
            ELSE quote_ident(n.nspname) || '.' || quote_ident(c.relname) END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_database d ON d.datname = current_database()
LEFT JOIN pg_class o ON o.reltoastrelid = c.oid
WHERE pg_relation_filenode(c.oid) IS NOT NULL
"""

Names = dict[tuple[int, int, int], str]


def write(archive: Archive, output: str, dsn: str | None) -> None:
    """One pass over the archive; the names are asked for first, since that can fail quickly."""
    names = relation_names(dsn) if dsn is not None else {}
    data = ReportData()
    for part, _ in archive.sweep(gather):
        data.add(part)
    data.problems = archive.problems
    page = render(data, title=f"WAL history of {archive.source.path}", names=names)
    path = Path(output)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(page)
        partial.replace(path)
    except OSError as error:
        raise HistoryError(f"{output}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def relation_names(dsn: str) -> Names:
    """By tablespace, database and relfilenode, of the database that the DSN names."""
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            rows = connection.execute(NAMES).fetchall()
    except psycopg.Error as error:
        raise HistoryError(f"names of relations: {' '.join(str(error).split())}") from error
    return {(space, database, node): name for space, database, node, name in rows}
