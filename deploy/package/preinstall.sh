#!/bin/sh
# The user and the group whom the service runs as; the configuration belongs to the group.
set -e
getent group squall >/dev/null || groupadd --system squall
getent passwd squall >/dev/null ||
	useradd --system --gid squall --home-dir /var/lib/squall --no-create-home --shell /usr/sbin/nologin --comment squall squall
