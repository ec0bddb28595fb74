#!/bin/sh
# Runs what is in /docker-entrypoint.d, then the command.
set -e
case "$1" in
nginx | nginx-debug)
	for script in /docker-entrypoint.d/*.sh; do
		if [ -x "$script" ]; then
			"$script"
		fi
	done
	;;
esac
exec "$@"
