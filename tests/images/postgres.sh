#!/bin/bash
# What the image postgres does at its start: a cluster for POSTGRES_USER with the password of a file, made once.
set -eu
data=/var/lib/postgresql/18/docker
mkdir -p "$data" /var/run/postgresql
chown -R postgres:postgres /var/lib/postgresql /var/run/postgresql
cp "$POSTGRES_PASSWORD_FILE" /tmp/password
chown postgres /tmp/password
as=(setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=/tmp)
if [ ! -s "$data/PG_VERSION" ]; then
    "${as[@]}" initdb --pgdata="$data" --encoding=UTF8 \
        --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256
    echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
    "${as[@]}" pg_ctl --pgdata="$data" -o "-c listen_addresses= -k /tmp" --wait start
    "${as[@]}" psql --host=/tmp --username="$POSTGRES_USER" --dbname=postgres -c "CREATE DATABASE \"$POSTGRES_DB\""
    "${as[@]}" pg_ctl --pgdata="$data" --mode=fast --wait stop
fi
rm /tmp/password
exec "${as[@]}" postgres -D "$data" -c listen_addresses='*' -k /tmp # where libpq of the same package looks
