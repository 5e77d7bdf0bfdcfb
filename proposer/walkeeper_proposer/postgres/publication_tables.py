"""The tables that publications have, as the catalogs say now."""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_proposer.logical.change_stream import Published
from walkeeper_proposer.postgres.quoting import quote_literal
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection

FIRST_WITH_LISTS = 150000  # the first server with column lists
FIRST_WITHOUT_GENERATED = 160000  # the first whose lists of all columns leave out generated ones
FIRST_WITH_GENERATED = 180000  # the first that publishes generated columns
# The rows of pg_publication_tables, without its locks: since 16 that view opens every table. A
# table that a session has altered stays locked while its commit waits for this very proposer.
PUBLISHED = """
WITH RECURSIVE listed AS (
  SELECT p.oid AS publication, p.pubviaroot, {generated} AS generated, c.oid, c.relkind
    FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_class c
      ON c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
   WHERE p.pubname IN ({names}) AND (p.puballtables
      OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
                  WHERE r.prpubid = p.oid AND r.prrelid = c.oid) {of_schemas})
  UNION
  SELECT l.publication, l.pubviaroot, l.generated, c.oid, c.relkind
    FROM listed l JOIN pg_catalog.pg_inherits i ON i.inhparent = l.oid AND l.relkind = 'p'
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid)
SELECT n.nspname, c.relname, {clashes}
  FROM listed l JOIN pg_catalog.pg_class c ON c.oid = l.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE (l.pubviaroot OR l.relkind = 'r') AND NOT (c.relispartition AND EXISTS (
            SELECT FROM pg_catalog.pg_inherits i JOIN listed up
                ON up.oid = i.inhparent AND up.pubviaroot {same_publication}
             WHERE i.inhrelid = l.oid))
 GROUP BY n.nspname, c.relname
"""
# A table with other columns in another publication. No list means all columns, as in
# pg_get_publication_tables. A walsender cannot decode a change of such a table.
CLASHES = """count(DISTINCT coalesce(
         (SELECT r.prattrs::text FROM pg_catalog.pg_publication_rel r
           WHERE r.prpubid = l.publication AND r.prrelid = l.oid),
         (SELECT pg_catalog.string_agg(a.attnum::text, ' ' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
             {and_sent}))) > 1"""
# In 15 the generated columns count as well, though no server before 18 sends them.
NOT_GENERATED = "AND a.attgenerated = ''"
GENERATED_AS_ASKED = "AND (a.attgenerated = '' OR a.attgenerated = l.generated)"
# Where one publication has a partition and another one its root, changes come as the root's alone.
# Before 15 that depends on the order of the publications, so these count one by one.
SAME_PUBLICATION = "AND up.publication = l.publication"
OF_SCHEMAS = """
      OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                  WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""


NO_COLUMNS = """'n'::"char" """  # generated columns that are published


def published_query(publications: Sequence[str], version: int) -> str:
    """Return the query for (schema, table, whether it clashes) of all published tables.

    It takes no table's lock."""
    has_lists = version >= FIRST_WITH_LISTS
    and_sent = NOT_GENERATED if version >= FIRST_WITHOUT_GENERATED else ""
    if version >= FIRST_WITH_GENERATED:
        and_sent = GENERATED_AS_ASKED
    return PUBLISHED.format(
        names=", ".join(quote_literal(name) for name in publications),
        of_schemas=OF_SCHEMAS if has_lists else "",
        clashes=CLASHES.format(and_sent=and_sent) if has_lists else "false",
        same_publication="" if has_lists else SAME_PUBLICATION,
        generated="p.pubgencols" if version >= FIRST_WITH_GENERATED else NO_COLUMNS,
    )


async def published(connection: ReplicationConnection, publications: Sequence[str]) -> Published:
    """Return the tables that are published now."""
    query = published_query(publications, connection.server_version[1])
    rows = await connection.query(query)
    named = [((row[0] or "", row[1] or ""), row[2] == "t") for row in rows]
    return Published(
        tables=tuple(table for table, _ in named),
        clashing=tuple(table for table, has_clash in named if has_clash),
    )
