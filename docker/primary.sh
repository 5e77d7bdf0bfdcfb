#!/bin/bash
# Run once by the postgres image, in a new data directory: the role of proposer, standby and attach,
# with the least privileges (README, "Attach to your own server"). Before PostgreSQL 15 only a
# superuser may set what attach sets; before 14 a password was md5 unless one asked.
set -euo pipefail

psql -v ON_ERROR_STOP=1 -v password="$WALKEEPER_PASSWORD" \
    -U "${POSTGRES_USER:-postgres}" -d "${POSTGRES_DB:-postgres}" <<'SQL'
SET password_encryption = 'scram-sha-256';
CREATE ROLE walkeeper LOGIN REPLICATION PASSWORD :'password';
GRANT pg_monitor TO walkeeper;
SELECT current_setting('server_version_num')::int >= 150000 AS parameters_have_privileges \gset
\if :parameters_have_privileges
GRANT ALTER SYSTEM ON PARAMETER synchronous_standby_names TO walkeeper;
GRANT EXECUTE ON FUNCTION pg_reload_conf() TO walkeeper;
\else
ALTER ROLE walkeeper SUPERUSER;
\endif
SQL

# The image admits every host to databases, and nobody but this one to replication.
echo 'host replication walkeeper samenet scram-sha-256' >> "$PGDATA/pg_hba.conf"
