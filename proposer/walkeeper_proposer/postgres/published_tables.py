"""The tables that publications have, as the catalogs say now."""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_proposer.postgres.quoting import quote_literal
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection

# The rows of pg_publication_tables, without its locks: since 16 that view opens every table. A
# table that a session has altered stays locked while its commit waits for this very proposer.
PUBLISHED = """
WITH RECURSIVE listed AS (
  SELECT p.oid AS publication, p.pubviaroot, c.oid, c.relkind
    FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_class c
      ON c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
   WHERE p.pubname IN ({names}) AND (p.puballtables
      OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
                  WHERE r.prpubid = p.oid AND r.prrelid = c.oid) {of_schemas})
  UNION
  SELECT l.publication, l.pubviaroot, c.oid, c.relkind
    FROM listed l JOIN pg_catalog.pg_inherits i ON i.inhparent = l.oid AND l.relkind = 'p'
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid)
SELECT DISTINCT n.nspname, c.relname
  FROM listed l JOIN pg_catalog.pg_class c ON c.oid = l.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE CASE WHEN l.pubviaroot THEN NOT (c.relispartition AND EXISTS (
            SELECT FROM pg_catalog.pg_inherits i JOIN listed up
                ON up.oid = i.inhparent AND up.publication = l.publication
             WHERE i.inhrelid = l.oid)) ELSE l.relkind = 'r' END
"""
OF_SCHEMAS = """
      OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                  WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""


def published_query(publications: Sequence[str], version: int) -> str:
    """Return the query for (schema, table) of all published tables; it takes no table's lock."""
    names = ", ".join(quote_literal(name) for name in publications)
    return PUBLISHED.format(names=names, of_schemas=OF_SCHEMAS if version >= 150000 else "")


async def published(
    connection: ReplicationConnection, publications: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return (schema, table) of all tables that are published now."""
    query = published_query(publications, connection.server_version[1])
    return tuple((row[0] or "", row[1] or "") for row in await connection.query(query))
