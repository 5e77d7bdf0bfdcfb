"""The catalogs of a running server, for WAL that does not have them: `--dsn`.

Contract: names, columns, types and files are those of now. A table that was rewritten or altered
since the wanted LSN needs a base backup instead: its file and columns were others.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

from walkeeper_cli.history.catalog import system_id_of
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_replay.catalogs.catalog import (
    Catalog,
    Database,
    attribute_of,
    class_of,
    type_of,
)
from walkeeper_replay.catalogs.catalog_rows import FIRST_USER_TYPE
from walkeeper_replay.text.money_text import is_known
from walkeeper_wal.wal_errors import HistoryError

_DATABASE = """
SELECT oid::bigint, datname::text, encoding, dattablespace::bigint
FROM pg_database WHERE datname = current_database()
"""
_CLASSES = """
SELECT oid::bigint, relname::text, relnamespace::bigint, reltype::bigint, reltablespace::bigint,
       coalesce(pg_relation_filenode(oid), 0)::bigint AS relfilenode, reltoastrelid::bigint,
       relpersistence::text, relkind::text, relnatts::int,
       relhassubclass, relam::bigint
FROM pg_class
"""
_ATTRIBUTES = """
SELECT attrelid::bigint, attname::text, atttypid::bigint, attlen::int, attnum::int, atttypmod,
       attalign::text, attnotnull, atthasmissing, attgenerated::text, attisdropped
FROM pg_attribute WHERE attnum > 0 AND attrelid >= 16384
"""
_TYPES = """
SELECT oid::bigint, typname::text, typnamespace::bigint, typlen::int, typtype::text,
       typrelid::bigint, typelem::bigint, typalign::text, typbasetype::bigint
FROM pg_type
"""
# 13 has no multiranges.
_RANGES = """
SELECT rngtypid::bigint, rngsubtype::bigint,
       (to_jsonb(r) ->> 'rngmultitypid')::bigint AS rngmultitypid
FROM pg_range r
"""
_KEYS = """
SELECT indrelid::bigint, indkey::int2[] AS keys, indnkeyatts::int
FROM pg_index WHERE indisprimary AND indimmediate
"""
# By catalog: an OID, a name, a schema, and what else its names need.
_NAMED = {
    "pg_type": _TYPES,
    "pg_ts_config": "SELECT oid::int8, cfgname::text, cfgnamespace::int8 FROM pg_ts_config",
    "pg_ts_dict": "SELECT oid::int8, dictname::text, dictnamespace::int8 FROM pg_ts_dict",
    "pg_proc": """
SELECT oid::int8, proname::text, pronamespace::int8, proargtypes::oid[]::int8[] AS proargtypes
FROM pg_proc""",
    "pg_operator": """
SELECT oid::int8, oprname::text, oprnamespace::int8, oprleft::int8, oprright::int8
FROM pg_operator""",
    "pg_collation": """
SELECT oid::int8, collname::text, collnamespace::int8, collprovider::text, collencoding
FROM pg_collation""",
}


def catalog_of_server(
    dsn: str, lsn: int, *, system_id: int | None, database: str | None
) -> Catalog:
    """Return the catalog of the database that the DSN names. Raise HistoryError if that is not
    `database`, or the server is not of the cluster `system_id`."""
    try:
        # By default, psycopg gives a SQL_ASCII database's names as bytes.
        with psycopg.connect(dsn, connect_timeout=10, client_encoding="UTF8") as connection:
            own = system_id_of(connection)
            if None not in (own, system_id) and own != system_id:
                raise HistoryError(
                    f"the server is of cluster {own}, the WAL is of {system_id}: "
                    "give --dsn of the server that wrote this WAL"
                )
            catalog = _read(connection, lsn)
    except psycopg.Error as error:
        raise HistoryError(f"catalogs of the server: {in_one_line(error)}") from error
    found = catalog.database
    if database not in (None, found.name, str(found.oid)):
        raise HistoryError(
            f"--dsn is of database {found.name}, --database says {database}: "
            "name one database in both"
        )
    return catalog


def _read(connection: psycopg.Connection, lsn: int) -> Catalog:
    def rows(query: str) -> list[dict[str, Any]]:
        return connection.cursor(row_factory=dict_row).execute(query.encode()).fetchall()

    own = rows(_DATABASE)[0]
    database = Database(own["oid"], own["datname"], own["encoding"], own["dattablespace"])
    catalog = Catalog(database, lsn)
    schemas = {
        row["oid"]: row["nspname"]
        for row in rows("SELECT oid::bigint, nspname::text FROM pg_namespace")
    }
    for row in rows(_CLASSES):
        catalog.classes[row["oid"]] = class_of(row, schemas)
    for row in rows(_ATTRIBUTES):
        catalog.attributes.setdefault(row["attrelid"], []).append(attribute_of(row))
    named = {name: rows(query) for name, query in _NAMED.items()}
    for row in named["pg_type"]:
        if row["oid"] >= FIRST_USER_TYPE:
            catalog.types.by_oid[row["oid"]] = type_of(row, schemas)
    for row in rows("SELECT oid::bigint, enumlabel::text FROM pg_enum"):
        catalog.types.labels[row["oid"]] = row["enumlabel"]
    for row in rows(_RANGES):
        catalog.types.ranges[row["rngtypid"]] = row["rngsubtype"]
        if row["rngmultitypid"]:
            catalog.types.multiranges[row["rngmultitypid"]] = row["rngtypid"]
    for row in rows(_KEYS):
        catalog.keys[row["indrelid"]] = list(row["keys"])[: row["indnkeyatts"]]
    catalog.schemas, catalog.has_system = schemas, True
    roles = {row["oid"]: row["rolname"] for row in rows("SELECT oid::int8, rolname FROM pg_roles")}
    catalog.finish(connection.info.server_version // 10000, roles, named.__getitem__)
    setting = connection.execute("SELECT current_setting('lc_monetary')").fetchone()
    catalog.types.has_dollars = is_known(setting[0] if setting else None)
    return catalog
