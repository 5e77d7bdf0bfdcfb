"""PostgreSQL as the proposer meets it: replication connections, SQL, connection strings. Shells."""
