# What several steps of a story do in a guest; each step sources it. Bash, for /dev/tcp.

# Emulated, on a machine that does other work too, a second's work may take a minute.
PATIENCE=240

# wait_for COMMAND...: until it succeeds, PATIENCE seconds at most.
wait_for() {
	local limit=$((SECONDS + PATIENCE))
	until "$@"; do
		if [ $SECONDS -ge $limit ]; then
			echo "did not come: $*"
			return 1
		fi
		sleep 0.3
	done
}

property() { systemctl show -p "$1" --value ttftd; }
active() { systemctl is-active -q ttftd; }
restarted() { [ "$(property NRestarts)" -ge "$1" ] && active; }
logged() { journalctl -u ttftd -o cat --no-pager | grep -q -- "$1"; }
healthy() { http GET /health | grep -q '^HTTP/1.1 200'; }
count() { ttft requests --json | grep -c '"outcome": "ok"'; }
answered() { [ "$(count)" -ge "$1" ]; }
more_than() { [ "$(count)" -gt "$1" ]; }
# Of both models.
cached() { [ "$(ttft models --json | grep -c '"cached_share": [0-9]')" -ge 2 ]; }
watched() { ttft status --json | grep -q '"port": 8080'; }

# http METHOD PATH [BODY]: to the server, read to its end.
http() {
	local body=${3-}
	{ exec 3<>/dev/tcp/127.0.0.1/8080; } 2>/dev/null || return 1
	printf '%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n' "$1" "$2" >&3
	printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
	cat <&3
	exec 3<&-
}

# A real llama-server as a router over two models, one of them loaded at a time; of another user,
# in a root of its own, as in a container.
serve() {
	mkdir -p /run/model-server
	mount -o ro /dev/vdc /run/model-server
	systemd-run -q --unit=model-server -p RootDirectory=/run/model-server -p MountAPIVFS=yes \
		-p User=65534 -p PrivateTmp=yes -p Environment=HOME=/tmp /usr/bin/llama-server \
		--models-dir /models --models-max 1 --port 8080 -c 256 -t 1 -np 1
	wait_for healthy
}

# ask MODEL: four tokens of it, streamed; prints the status and how many came.
ask() {
	local text
	text=$(http POST /v1/chat/completions "{\"model\": \"$1\", \"stream\": true, \"max_tokens\": 4,
		\"ignore_eos\": true, \"logit_bias\": [[$LETTER, 100]], \"temperature\": 0,
		\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}")
	printf '%s' "$text" | sed -n '1s/\r//p'
	printf '%s' "$text" | grep -c '"content":"a"'
}

# without CAPABILITY: the daemon again, with all its rights but this one.
without() {
	local all drop=/etc/systemd/system/ttftd.service.d/without.conf
	all=$(grep -oP '^AmbientCapabilities=\K.*' "$(property FragmentPath)")
	mkdir -p ${drop%/*}
	printf '[Service]\nAmbientCapabilities=\nCapabilityBoundingSet=\n' >$drop
	for key in AmbientCapabilities CapabilityBoundingSet; do
		echo "$key=${all//$1/}" >>$drop
	done
	systemctl daemon-reload
	systemctl reset-failed ttftd
	systemctl restart ttftd
}

# drop_in NAME LINE: one more line for the unit; `undo NAME` takes it back.
drop_in() {
	mkdir -p /etc/systemd/system/ttftd.service.d
	printf '[Service]\n%s\n' "$2" >"/etc/systemd/system/ttftd.service.d/$1.conf"
	systemctl daemon-reload
	systemctl restart ttftd
}

undo() {
	rm "/etc/systemd/system/ttftd.service.d/$1.conf"
	rmdir /etc/systemd/system/ttftd.service.d
	systemctl daemon-reload
	systemctl reset-failed ttftd
	systemctl restart ttftd
}

# left: what of it is still there.
left() {
	ls -d /var/lib/ttft /etc/ttft /etc/systemd/system/ttftd.service /run/ttft \
		/etc/systemd/system/ttftd.service.d /usr/lib/systemd/system/ttftd.service 2>/dev/null
	getent passwd ttft
	getent group ttft
	active && echo running
	return 0
}

# schema NUMBER: the history as a newer ttft would leave it; 0 takes that back.
schema() {
	python3 - "$1" <<-'END'
		import sqlite3, sys
		number = int(sys.argv[1])
		with sqlite3.connect("/var/lib/ttft/history.db") as base:
		    base.execute("DELETE FROM migrations WHERE number >= 90")
		    if number:
		        base.execute("INSERT INTO migrations VALUES (?, 0)", (number,))
		base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
	END
}
