"""The copy of a published table into a Parquet file, by COPY. Blocks.

    tables = published_tables(sql, publications)
    rows = copy_table(sql, tables[0], path)      in the connection's snapshot

Types are those of `history table-at`. Integers, floats, booleans, dates, timestamps and bytea have
Arrow's types. All other types are text as PostgreSQL prints it. Infinity of dates and times is the
type's largest (or smallest) value. Column lists and row filters of publications count. Memory is
bounded, because rows go from the socket to the file in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
from psycopg import sql as text_of

from walkeeper_replay.columns.columns_of_rows import BYTEA, arrow_type

BLOCK_BYTES = 4 << 20
_DATE, _TIMESTAMPS = 1082, (1114, 1184)
_INT64_MAX, _INT32_MAX = (1 << 63) - 1, (1 << 31) - 1

_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind, {columns}, {filter},
       (SELECT array_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_index i
          JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
         WHERE i.indrelid = c.oid
           AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = ANY (%s) ORDER BY 2, 3
"""
_COLUMNS = """
WITH RECURSIVE base AS (
  SELECT oid AS type, oid, typtype, typbasetype FROM pg_catalog.pg_type
  UNION ALL
  SELECT base.type, t.oid, t.typtype, t.typbasetype
    FROM base JOIN pg_catalog.pg_type t ON base.typtype = 'd' AND t.oid = base.typbasetype)
SELECT a.attname, base.oid FROM pg_catalog.pg_attribute a
  JOIN base ON base.type = a.atttypid AND base.typtype <> 'd'
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND {generated} ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication.

    `columns` are pairs of a name and a type's OID. `row_filter` is SQL, or empty.
    """

    schema: str
    name: str
    is_partitioned: bool
    columns: tuple[tuple[str, int], ...]
    key: tuple[str, ...]
    row_filter: str

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def arrow_schema(self) -> Any:
        return pa.schema([(name, arrow_type(oid)) for name, oid in self.columns])


def published_tables(
    connection: psycopg.Connection[Any], publications: Sequence[str]
) -> list[PublishedTable]:
    """Return each published table once.

    For a table in several publications, row filters count only if each publication has one.
    """
    version = connection.info.server_version
    has_lists = version >= 150000
    query = _TABLES.format(
        columns="t.attnames" if has_lists else "NULL", filter="t.rowfilter" if has_lists else "NULL"
    )
    found: dict[int, PublishedTable] = {}
    for oid, schema, name, kind, listed, row_filter, key in connection.execute(
        query.encode(), [list(publications)]
    ).fetchall():
        generated = "true" if version >= 180000 else "a.attgenerated = ''"
        every = connection.execute(_COLUMNS.format(generated=generated).encode(), [oid]).fetchall()
        columns = tuple((n, t) for n, t in every if listed is None or n in listed)
        if oid in found:
            before = found[oid].row_filter
            row_filter = f"({before}) OR ({row_filter})" if before and row_filter else ""
        found[oid] = PublishedTable(
            schema, name, kind == "p", columns, tuple(key or ()), row_filter or ""
        )
    return list(found.values())


def copy_table(connection: psycopg.Connection[Any], table: PublishedTable, path: Path) -> int:
    """Copy the table and return its number of rows; the file is then whole."""
    count = 0
    with (
        connection.cursor() as cursor,
        cursor.copy(_copy_command(table)) as copy,
        path.open("wb") as file,
        parquet.ParquetWriter(file, table.arrow_schema, compression="zstd") as writer,
    ):
        for batch in _batches(copy, table):
            count += batch.num_rows
            writer.write_batch(batch)
    return count


def _copy_command(table: PublishedTable) -> text_of.Composed:
    listed = text_of.SQL(", ").join(
        text_of.SQL(_expression(oid)).format(column=text_of.Identifier(name))
        for name, oid in table.columns
    )
    only = "" if table.is_partitioned else "ONLY "
    where = f" WHERE {table.row_filter}" if table.row_filter else ""
    return text_of.SQL(
        "COPY (SELECT {listed} FROM {only}{table}{where}) "
        "TO STDOUT (FORMAT csv, FORCE_QUOTE *, ENCODING 'UTF8')"
    ).format(
        listed=listed,
        only=text_of.SQL(only),
        table=text_of.Identifier(table.schema, table.name),
        where=text_of.SQL(where),
    )


def _expression(oid: int) -> str:
    """Return the SQL for a column of this type.

    Times become numbers, which are exact, can show infinity, and need no parsing.
    """
    if oid == _DATE:
        return (
            f"CASE {{column}} WHEN 'infinity' THEN {_INT32_MAX} WHEN '-infinity' "
            f"THEN {-_INT32_MAX - 1} ELSE {{column}} - date '1970-01-01' END"
        )
    if oid in _TIMESTAMPS:
        return (
            f"CASE {{column}} WHEN 'infinity' THEN {_INT64_MAX} WHEN '-infinity' "
            f"THEN {-_INT64_MAX - 1} ELSE extract(epoch FROM date_trunc('second', {{column}}))"
            "::int8 * 1000000 + extract(microseconds FROM {column})::int8 % 1000000 END"
        )
    return "encode({column}, 'hex')" if oid == BYTEA else "{column}"


def _batches(copy: psycopg.Copy, table: PublishedTable) -> Iterator[Any]:
    schema = table.arrow_schema
    sent = {field.name: _sent_as(field.type) for field in schema}
    if not sent:  # a table without columns may still have rows
        raise psycopg.DataError(f"{table.shown} has no columns")
    names = [str(n) for n in range(len(schema))]  # names may repeat what CSV would call a null
    types = dict(zip(names, sent.values(), strict=True))
    for rows in _blocks(copy):
        found = csv.read_csv(
            pa.BufferReader(rows),
            # All rows are one block, because a row may be longer than any fixed block size.
            read_options=csv.ReadOptions(
                column_names=names, block_size=len(rows) + 1, use_threads=False
            ),
            # A row whose only value is NULL is an empty line.
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types=types,
                null_values=[""], true_values=["t"], false_values=["f"],
                strings_can_be_null=True, quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
        for batch in found.to_batches():
            arrays = [
                _as(array, field.type) for array, field in zip(batch.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _blocks(copy: psycopg.Copy) -> Iterator[bytes]:
    """Yield whole rows in blocks of BLOCK_BYTES or more; PostgreSQL sends each row by itself."""
    held, size = list[bytes](), 0
    while row := copy.read():
        held.append(bytes(row))
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _sent_as(type_: Any) -> Any:
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if type_ == pa.date32():
        return pa.int32()
    return pa.string() if type_ == pa.binary() else type_


def _as(array: Any, type_: Any) -> Any:
    if type_ == pa.binary():
        return pa.array([None if v is None else bytes.fromhex(v) for v in array.to_pylist()], type_)
    return array if array.type == type_ else array.cast(type_)
