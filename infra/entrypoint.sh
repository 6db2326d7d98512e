#!/bin/sh
# Libpq takes the password from its environment where the connection string has none: so the secret stands in one file,
# for Postgres and for us, and in no configuration.
set -eu
if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
    PGPASSWORD="$(cat "$POSTGRES_PASSWORD_FILE")"
    export PGPASSWORD
fi
exec "$@"
