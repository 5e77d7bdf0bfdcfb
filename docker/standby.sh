#!/bin/bash
# A standby: its base backup comes from the primary, its WAL from any safekeeper.
set -euo pipefail

# libpq takes a key that its user alone may read.
file=${PGDATA%/*}/tls.pem
install -m 600 /srv/tls/tls.pem "$file"

if [ ! -e "$PGDATA" ]; then
    # Under another name until it is whole, so that a restart in the middle begins anew.
    rm -rf "$PGDATA.new"
    pg_basebackup -d 'host=primary user=walkeeper' -D "$PGDATA.new" -X stream -c fast
    {
        echo "primary_conninfo = 'host=safekeeper1,safekeeper2,safekeeper3 port=5454" \
            "user=standby application_name=standby sslmode=verify-full" \
            "sslcert=$file sslkey=$file sslrootcert=$file'"
        # The attached primary's own setting came with the backup. Promoted, nobody would answer.
        echo "synchronous_standby_names = ''"
    } >> "$PGDATA.new/postgresql.auto.conf"
    touch "$PGDATA.new/standby.signal"
    mv "$PGDATA.new" "$PGDATA"
fi
exec "$@"
