#!/bin/sh
# Starts redis-server as the user redis, reachable from other pods; options alone mean
# redis-server with these options, and any other command runs as it is.
set -e
if [ "${1#-}" != "$1" ] || [ "${1%.conf}" != "$1" ]; then
	set -- redis-server "$@"
fi
if [ "$1" != redis-server ]; then
	exec "$@"
fi
# A configuration file has to stay the first argument.
shift
config=
if [ "${1%.conf}" != "${1:-}" ]; then
	config=$1
	shift
fi
umask 0077
set -- redis-server ${config:+"$config"} --bind 0.0.0.0 -::1 --protected-mode no "$@"
if [ "$(id -u)" = 0 ]; then
	find . \! -user redis -exec chown redis '{}' +
	exec gosu redis "$@"
fi
exec "$@"
