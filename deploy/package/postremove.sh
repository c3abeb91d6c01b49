#!/bin/sh
# What squall stored, its secrets and its user go with `purge`, as Debian has it. RPM knows no purge: there the state stays.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/squall /etc/squall/credentials
	rmdir --ignore-fail-on-non-empty /etc/squall 2>/dev/null || :
	if getent passwd squall >/dev/null; then
		userdel squall
	fi
	if getent group squall >/dev/null; then
		groupdel squall
	fi
fi
