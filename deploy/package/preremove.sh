#!/bin/sh
# Before an upgrade (Debian: `upgrade`; RPM: 1) squall goes on: it is restarted when the new one is there.
set -e
case "$1" in
remove|0)
	if [ -d /run/systemd/system ]; then
		systemctl --no-reload disable --now squall.service
	fi
	;;
esac
