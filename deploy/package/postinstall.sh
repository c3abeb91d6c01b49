#!/bin/sh
# Debian calls this with `configure` and the version that was there; RPM with the number of versions that are there now.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi

case "$1:$2" in
configure:|1:)
	cat <<'END'
squall is installed, and does not run. Next:
  squall init                       looks at this machine and writes /etc/squall/squall.yaml
  squall doctor                     tries every log, Loki and Alertmanager
  systemctl enable --now squall     starts it
END
	;;
configure:*|2:*)
	# Only when it runs: what nobody started is not started by an upgrade.
	if [ -d /run/systemd/system ]; then
		if command -v deb-systemd-invoke >/dev/null; then
			deb-systemd-invoke try-restart squall.service
		else
			systemctl try-restart squall.service
		fi
	fi
	;;
esac
