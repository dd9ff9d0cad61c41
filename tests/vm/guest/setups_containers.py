"""Two containers with a server each, on the same port, seen from a host that has cgroup v1 only."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vm.guest import setups_making as making
from tests.workloads.waiting import wait_for
from tracer.client import Client

PORT = 8080
MIB = 1 << 20
#: Where a container finds its model; the first has it on a bind mount, the second in its image.
MODEL = "/models/model.gguf"
PAGE = 4096
#: No whole pages: where a read at the end finds a page's begin, kernels before 5.11 put one in
#: the page cache that the file has not.
SIZES = {"first": 3 * MIB + 100, "second": 5 * MIB + 100}
_SERVER = Path(__file__).with_name("setups_server.py")
_WAIT_S = 60.0
_SCRIPT = """
hostname {name}
for at in /sys/fs/cgroup/memory /sys/fs/cgroup/cpu; do
    mkdir -p $at/{name}; echo 0 >$at/{name}/cgroup.procs; done
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir={at}/upper,workdir={at}/work {at}/root
{models}
mount -t proc proc {at}/root/proc
mount --rbind /dev {at}/root/dev
exec chroot {at}/root /usr/local/bin/llama-server /srv/server.py -m {model} --port {port}
"""
_BIND = "mount --bind {source} {at}/root/models"


def _make_model(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"GGUF" + bytes(size - 4))
        os.fsync(file.fileno())


class Container:
    """Processes, mounts, network, cgroups and host name of its own, on an overlay of the root."""

    def __init__(self, name: str, source: Path | None) -> None:
        self.name = name
        self._source = source
        self._at = Path(f"/run/{name}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Runs it, until its server listens."""
        upper = self._at / "upper"
        for folder in ("upper/srv", "upper/usr/local/bin", "work", "root"):
            (self._at / folder).mkdir(parents=True)
        (upper / "etc").mkdir()
        (upper / "etc/hostname").write_text(f"{self.name}\n")
        shutil.copy(_SERVER, upper / "srv/server.py")
        shutil.copy(Path(sys.executable).resolve(), upper / "usr/local/bin/llama-server")
        making.shell(f"ip netns add {self.name}; ip -n {self.name} link set lo up")
        bind = _BIND.format(source=self._source, at=self._at) if self._source else ""
        script = _SCRIPT.format(name=self.name, at=self._at, models=bind, model=MODEL, port=PORT)
        parts = ("--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--cgroup")
        self._process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.name}", "unshare", *parts, "sh", "-ec", script]
        )
        wait_for(self._listens, _WAIT_S, f"the server of {self.name}")

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "the container ended"
        path = f"/proc/{self._process.pid}/net/tcp"
        lines = Path(path).read_text().splitlines()[1:]
        return any(f":{PORT:04X} " in line and " 0A " in line for line in lines)

    def ask(self) -> None:
        """A client in the container's network."""

        def work() -> None:
            making.enter(self.name)
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=_WAIT_S)
            body = json.dumps({"model": self.name, "messages": [], "stream": True})
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, kind)
            answer = connection.getresponse().read()
            if b"[DONE]" not in answer:
                raise SystemExit(f"{self.name} answered {answer!r}")

        said = self._at / "client"
        if making.ended(making.fork(work, said)):
            raise SystemExit(f"the client of {self.name}: {said.read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def run(out: Path) -> None:
    """Leaves containers.json: what status, requests and models say."""
    source = Path("/var/tmp/models")
    _make_model(source / Path(MODEL).name, SIZES["first"])
    _make_model(Path(MODEL), SIZES["second"])
    first, second = Container("first", source), Container("second", None)
    said = out / "containers.said"
    try:
        making.shell("modprobe overlay")
        first.start()  # found when the daemon looks around; the second as it starts
        pid = making.fork(making.ttftd("containers"), said)
        if making.settled(pid, said) is not None:
            raise SystemExit(f"the daemon does not run: {said.read_text()}")
        second.start()
        making.shell("sync; echo 3 >/proc/sys/vm/drop_caches")
        for container in (first, second, first):
            container.ask()
        found = _answers(Client("/run/containers.sock"))
        if making.stop(pid):
            raise SystemExit(f"the daemon failed: {said.read_text()}")
    finally:
        first.stop()
        second.stop()
    (out / "containers.json").write_text(json.dumps(found, indent=1) + "\n")


def _answers(client: Client) -> dict[str, Any]:
    def get(path: str) -> Any:
        return json.loads(client.get(path))

    def explained() -> bool:
        return len(get("/v1/requests")) == 3

    wait_for(explained, _WAIT_S, "three requests", poll_s=0.2)
    requests = get("/v1/requests")
    return {
        "status": get("/v1/status"),
        "models": get("/v1/models"),
        "requests": [get(f"/v1/requests/{one['id']}") for one in requests],
    }
