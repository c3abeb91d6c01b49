#!/usr/bin/env bash
# A machine for a package: this one's files, written to in memory only, and a systemd of its own as process 1.
# machine.sh FOLDER FILE… is run by unshare as the first process of new namespaces; the FILEs are put into its /root.
set -euo pipefail
folder=$1
shift
mount --make-rprivate /
mount -t tmpfs tmpfs "$folder"
cd "$folder"
mkdir upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work" root
cp "$@" root/root/
cd root
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --rbind /dev dev
mount -t sysfs sysfs sys
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mount -t tmpfs tmpfs sys/fs/cgroup
	mkdir sys/fs/cgroup/systemd
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
# Nothing of the other machine's is started, nor what a squall that is installed there left behind.
rm -rf etc/systemd/system/multi-user.target.wants var/log/nginx etc/squall var/lib/squall
ln -sf /dev/null etc/systemd/system/getty.target # the terminals are the other machine's
: >etc/machine-id
printf '#!/bin/sh\nexit 0\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
mount --make-rshared . # as systemd has it where it is not in a container: credentials come to a service that way
exec env -i container=squall-test PATH="$PATH" chroot . /lib/systemd/systemd --system --unit=multi-user.target
