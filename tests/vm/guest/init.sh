#!/bin/sh
# Init of the small guests: mounts what was asked for, runs the job, switches off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
. /mnt/control/settings

mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for at in /run /tmp /dev/shm; do mount -t tmpfs tmpfs $at; done
ip link set lo up
hostname vm

has() { case ",$1," in *",$2,"*) return 0 ;; esac && return 1; }

v1_cgroups() {
	mount -t tmpfs cgroup /sys/fs/cgroup
	while read -r name _ _ enabled; do
		[ "$enabled" = 1 ] || continue
		mkdir -p "/sys/fs/cgroup/$name"
		# A kernel may list a controller that only v2 has.
		mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name" || rmdir "/sys/fs/cgroup/$name"
	done </proc/cgroups
}

case $VM_CGROUP in
v1) v1_cgroups ;;
hybrid) v1_cgroups && mkdir /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified ;;
v2) mount -t cgroup2 cgroup2 /sys/fs/cgroup ;;
esac
has "$VM_MOUNTS" tracefs && mount -t tracefs tracefs /sys/kernel/tracing
has "$VM_MOUNTS" debugfs && mount -t debugfs debugfs /sys/kernel/debug
has "$VM_MOUNTS" bpffs && mount -t bpf bpf /sys/fs/bpf
has "$VM_MOUNTS" securityfs && mount -t securityfs securityfs /sys/kernel/security

/bin/sh /mnt/control/job
sync
echo o >/proc/sysrq-trigger
while :; do sleep 1; done
