#!/bin/bash
# Makes a database cluster in PGDATA on first start, then runs postgres as the user postgres.
# POSTGRES_PASSWORD (or POSTGRES_PASSWORD_FILE) is required unless
# POSTGRES_HOST_AUTH_METHOD=trust; POSTGRES_USER, POSTGRES_DB and POSTGRES_INITDB_ARGS are
# optional. Scripts in /docker-entrypoint-initdb.d run once, against the new database.
set -Eeuo pipefail

if [ "${1#-}" != "$1" ]; then
	set -- postgres "$@"
fi
if [ "$1" != postgres ]; then
	exec "$@"
fi
for argument in "$@"; do
	case "$argument" in
	-\? | --help | --describe-config | -V | --version) exec "$@" ;;
	esac
done

if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA" /var/run/postgresql
	chmod 0700 "$PGDATA"
	find "$PGDATA" /var/run/postgresql \! -user postgres -exec chown postgres:postgres '{}' +
	exec gosu postgres "$0" "$@"
fi

from_file() { # VARIABLE [DEFAULT]: the variable, or the content of the file VARIABLE_FILE names
	local file="$1_FILE"
	if [ -n "${!1:-}" ] && [ -n "${!file:-}" ]; then
		echo "both $1 and $file are set" >&2
		exit 1
	fi
	if [ -n "${!file:-}" ]; then
		export "$1"="$(cat "${!file}")"
	else
		export "$1"="${!1:-${2:-}}"
	fi
	unset "$file"
}

sql() { psql -v ON_ERROR_STOP=1 --no-psqlrc --username "$POSTGRES_USER" "$@"; }

initialize() {
	if [ -z "$POSTGRES_PASSWORD" ] && [ "$POSTGRES_HOST_AUTH_METHOD" != trust ]; then
		echo "the database is new and no superuser password is given: set POSTGRES_PASSWORD," >&2
		echo "or POSTGRES_HOST_AUTH_METHOD=trust to let everyone in" >&2
		exit 1
	fi
	# shellcheck disable=SC2086 # POSTGRES_INITDB_ARGS is a list
	initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") ${POSTGRES_INITDB_ARGS:-}
	printf '\nhost all all all %s\n' "$POSTGRES_HOST_AUTH_METHOD" >>"$PGDATA/pg_hba.conf"
	# While it is being filled the server listens on its Unix socket only.
	PGPASSWORD="$POSTGRES_PASSWORD" pg_ctl -w start -o "-c listen_addresses= -p 5432"
	if [ "$POSTGRES_DB" != postgres ]; then
		sql --dbname postgres --set db="$POSTGRES_DB" <<<'CREATE DATABASE :"db";'
	fi
	for script in /docker-entrypoint-initdb.d/*; do
		case "$script" in
		*.sh) if [ -x "$script" ]; then "$script"; else . "$script"; fi ;;
		*.sql) sql --dbname "$POSTGRES_DB" -f "$script" ;;
		*.sql.gz) gunzip -c "$script" | sql --dbname "$POSTGRES_DB" ;;
		esac
	done
	pg_ctl -m fast -w stop
	unset PGPASSWORD
}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	from_file POSTGRES_PASSWORD
	from_file POSTGRES_USER postgres
	from_file POSTGRES_DB "$POSTGRES_USER"
	: "${POSTGRES_HOST_AUTH_METHOD:=scram-sha-256}"
	export PGHOST=/var/run/postgresql PGPASSWORD="$POSTGRES_PASSWORD"
	initialize
	unset PGHOST PGPASSWORD
fi
exec "$@" -c listen_addresses="${POSTGRES_LISTEN_ADDRESSES:-*}"
