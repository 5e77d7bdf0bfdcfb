#!/bin/bash
# Run once by the postgres image, in a new data directory: the role of proposer, standby and attach,
# with the least privileges (README, "Attach to your own server").
set -euo pipefail

psql -v ON_ERROR_STOP=1 -v password="$WALKEEPER_PASSWORD" \
    -U "${POSTGRES_USER:-postgres}" -d "${POSTGRES_DB:-postgres}" <<'SQL'
CREATE ROLE walkeeper LOGIN REPLICATION PASSWORD :'password';
GRANT pg_monitor TO walkeeper;
GRANT ALTER SYSTEM ON PARAMETER synchronous_standby_names TO walkeeper;
GRANT EXECUTE ON FUNCTION pg_reload_conf() TO walkeeper;
SQL

# The image admits every host to databases, and nobody but this one to replication.
echo 'host replication walkeeper samenet scram-sha-256' >> "$PGDATA/pg_hba.conf"
