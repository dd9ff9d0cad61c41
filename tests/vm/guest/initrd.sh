#!/bin/busybox sh
# First process of a guest: drivers, disks, shared folders, then the root's own init.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

while read -r name; do
	insmod "/modules/$name.ko" || echo "vm: no $name"
done </modules/order

waited=0
until [ -b /dev/vdb ] || [ $waited = 200 ]; do
	sleep 0.05
	waited=$((waited + 1))
done
mount -t ext4 -o noatime /dev/vda /new
mount -t ext4 -o ro /dev/vdb /new/opt/libs

share() {
	mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "/new/$2"
}
version=$(uname -r)
mkdir -p "/new/usr/lib/modules"
share modules usr/lib/modules ro,cache=loose
share checkout mnt/checkout ro,cache=loose
share control mnt/control ro
share out mnt/out rw

umount /sys /proc
mount --move /dev /new/dev
read -r second </new/mnt/control/init
exec switch_root /new "$second"
