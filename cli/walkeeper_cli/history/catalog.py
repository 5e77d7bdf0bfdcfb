"""Names of relations for `walkeeper history`, from a server now or from older dumps.

There is one connection to each database, since each knows only its own relations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from walkeeper_cli.history.terminal import tell
from walkeeper_cli.history.wal_options import NameSource
from walkeeper_common.operator_text.hidden_secrets import without_secrets
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_history.rows.relation_names import NamedRelation, RelationNames, load_names
from walkeeper_history.whole_file import whole_file
from walkeeper_wal.wal_errors import HistoryError

if TYPE_CHECKING:
    import psycopg

_DATABASES = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname"
_RELATIONS = """
SELECT coalesce(nullif(c.reltablespace, 0), d.dattablespace)::bigint,
       CASE WHEN c.reltablespace = 1664 THEN 0 ELSE d.oid::bigint END,
       pg_relation_filenode(c.oid)::bigint,
       c.oid::bigint,
       CASE WHEN c.reltablespace = 1664 THEN '' ELSE d.datname END,
       CASE WHEN c.relkind = 't' THEN 'TOAST of ' || coalesce(
                quote_ident(s.nspname) || '.' || quote_ident(o.relname), '?')
            WHEN c.relkind = 'i' AND n.nspname = 'pg_toast'
            THEN 'TOAST index ' || c.relname
            ELSE quote_ident(n.nspname) || '.' || quote_ident(c.relname) END,
       to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_database d ON d.datname = current_database()
LEFT JOIN pg_class o ON o.reltoastrelid = c.oid
LEFT JOIN pg_namespace s ON s.oid = o.relnamespace
WHERE pg_relation_filenode(c.oid) IS NOT NULL
"""


def relation_names(source: NameSource, system_id: int | None = None) -> RelationNames:
    """Return the names in the dumps and on the server; the server's present names take precedence.

    `system_id` is that of the WAL. If the server is optional and is another cluster's, its names
    are left out with a message. Raise HistoryError if other names are another cluster's.
    """
    names = load_names(source.catalogs)
    names.check(system_id)
    if source.dsn is None:
        return names
    try:
        asked = ask_server(source.dsn)
        asked.check(system_id)
        names.check(asked.system_id)
    except HistoryError as error:
        if source.insists:
            raise
        tell(f"walkeeper: without names of the server of WALKEEPER_DSN: {error}")
        return names
    names.system_id = asked.system_id or names.system_id
    for each in asked:
        names.add(each)
    return names


def ask_server(dsn: str) -> RelationNames:
    """Return the names in all databases that this role may connect to.

    Raise HistoryError if there is none, or if the server does not answer.
    """
    import psycopg  # a fifth of a second, which most commands do not need
    from psycopg.conninfo import make_conninfo

    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            databases = [name for (name,) in connection.execute(_DATABASES)]
            names = RelationNames(system_id_of(connection))
        for database in databases:
            where = make_conninfo(dsn, dbname=database)
            try:
                with psycopg.connect(where, connect_timeout=10) as connection:
                    for row in connection.execute(_RELATIONS):
                        names.add(NamedRelation(*row))
            except psycopg.OperationalError:
                if len(databases) == 1:
                    raise
                continue  # pg_hba.conf may let us into some databases only
    except psycopg.Error as error:
        said = without_secrets(in_one_line(error), dsn)
        raise HistoryError(f"names of relations: {said}") from None
    if not names:
        raise HistoryError(
            "names of relations: the server lets this role into no database; give it CONNECT"
        )
    return names


def system_id_of(connection: psycopg.Connection) -> int | None:
    """Return the server's system identifier, or None for a role that may not see it.

    With None, names of another cluster are not noticed.
    """
    from psycopg.errors import InsufficientPrivilege

    try:
        row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    except InsufficientPrivilege:
        return None
    return None if row is None else int(row[0])


def write_catalog(dsn: str, output: str) -> RelationNames:
    """Write the catalog file, whole or not at all, and return its names.

    The names that the file had before stay in it. Raise HistoryError if they are another cluster's.
    """
    names = relation_names(NameSource((output,) if Path(output).is_file() else (), dsn))
    with whole_file(output, encoding="utf-8") as file:
        file.write(json.dumps(names.document(), indent=0))
    return names
