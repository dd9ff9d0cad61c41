# Runs each of the commands in the checkout; what they print and return goes to the host.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
export OUT=/mnt/out PYTHONPATH=/opt/libs:/mnt/checkout PYTHONDONTWRITEBYTECODE=1
. /mnt/control/settings
cd /mnt/checkout
uname -r >/mnt/out/vm/release
for command in /mnt/control/commands/*; do
	to=/mnt/out/vm/${command##*/}
	read -r begun _ </proc/uptime
	timeout -k 5 "$VM_COMMAND_S" sh "$command" >"$to.out" 2>&1 </dev/null
	echo $? >"$to.status.new"
	read -r ended _ </proc/uptime
	echo "$begun $ended" >"$to.times"
	mv "$to.status.new" "$to.status"
done
dmesg >/mnt/out/vm/dmesg
touch /mnt/out/vm/done
