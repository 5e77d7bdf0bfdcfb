"""Statements with what no snapshot shows later: temporary tables, sequences, long values.

    of_passing(table, number)

ON COMMIT DROP leaves rows of catalogs that are gone with their transaction. Values of more than a
hundred chunks stand for those near PostgreSQL's limit. Pure.
"""

from __future__ import annotations

LONG = "(SELECT string_agg(md5({n}::text || i), '') FROM generate_series(1, 8000) i)"
"""256,000 bytes that no compression makes short."""


def of_passing(table: str, number: int) -> list[str]:
    """Return what passes beside a table, or fills and empties it with long values."""
    long = LONG.format(n=number)
    temporary = f"CREATE TEMPORARY TABLE q{number} ON COMMIT DROP AS SELECT * FROM {table}"
    return [
        f"{temporary}; UPDATE q{number} SET id = -id; "
        f"DELETE FROM {table} WHERE id IN (SELECT -id FROM q{number} WHERE id % 7 = 0)",
        f"SAVEPOINT q{number}; {temporary}; ROLLBACK TO q{number}",
        f"CREATE SEQUENCE s{number}; SELECT nextval('s{number}') FROM generate_series(1, 40); "
        f"UPDATE {table} SET id = nextval('s{number}') WHERE id % 9 = 0",
        f"CREATE SEQUENCE s{number} OWNED BY {table}.id; "
        f"ALTER TABLE {table} ALTER id SET DEFAULT nextval('s{number}')",
        f"ALTER TABLE {table} ADD COLUMN l{number} text; UPDATE {table} SET l{number} = {long} "
        f"WHERE id % 50 = 0; UPDATE {table} SET id = -id WHERE id % 50 = 0",
        f"ALTER TABLE {table} ADD COLUMN l{number} text; UPDATE {table} SET l{number} = {long} "
        f"WHERE id % 50 = 0; ALTER TABLE {table} DROP COLUMN l{number}; "
        f"UPDATE {table} SET id = -id WHERE id % 25 = 0",
    ]
