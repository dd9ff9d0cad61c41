"""Steps of the guests, as shell; guest/steps.sh has the functions that they call."""

from __future__ import annotations

from tests.service.made import OLDER
from tracer import __version__

Steps = dict[str, str]

CAPABILITIES = (
    "CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN",
    "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER",
)  # fmt: skip
#: The daemon does not begin without these.
NEEDED = CAPABILITIES[:3]
VENV = "/opt/pipx/venvs/ttft"
#: Debian's own, unpacked once: read from its wheel it would be compiled at each call.
_UNPACK_PIP = "python3 -m zipfile -e /usr/share/python-wheels/pip-*.whl /opt/pip"
_PIP = (
    f"PYTHONPATH=/opt/pip {VENV}/bin/python -m pip --disable-pip-version-check"
    " install -q --no-index --find-links /mnt/out"
)
_HASH = "sha256sum </var/lib/ttft/history.db"
_STATE = "systemctl stop ttftd; schema 99; " + _HASH

#: From an installed daemon to what people ask of it, about a real server.
FIRST_STEPS = {
    "users": "useradd -m -G ttft alice && useradd -m bob",
    "strict": "drop_in strict SystemCallErrorNumber=kill; property MainPID",
    "server": "serve && wait_for watched",
    "ask": "for model in alpha alpha alpha beta; do ask $model; done; wait_for answered 4",
    "member": "su - alice -c 'ttft requests --json'",
    "spikes": "su - alice -c 'ttft spikes'",
    "spikes-json": "su - alice -c 'ttft spikes --json'",
    "show": "su - alice -c 'ttft show 4'",
    "status": "su - alice -c 'ttft status'",
    "models": "su - alice -c 'ttft models --json'",
    "outsider": "su - bob -c 'ttft spikes'",
    "outsider-service": "su - bob -c 'ttft service status'",
    "who": "ps -o user=,comm= -p $(property MainPID)",
    "exposure": "systemd-analyze security ttftd | tail -1",
}
#: After all of it: the same process, which no forbidden call has ended.
LAST_STEPS = {
    "strict-end": "property MainPID; property NRestarts; journalctl -o cat --no-pager"
    " -u ttftd | grep -c SIGSYS; undo strict",
}
KILLED = (
    "systemctl kill -s KILL ttftd; wait_for restarted 1; ttft requests --json;"
    " su - alice -c 'ttft service status'"
)
#: So short for the test only.
HANG = (
    "drop_in soon WatchdogSec=20; kill -STOP $(property MainPID);"
    ' wait_for restarted 1; ttft requests --json | grep -c \'"outcome": "ok"\';'
    " property Result; journalctl -u ttftd -o cat --no-pager | grep -o 'Watchdog timeout' | uniq;"
    " undo soon"
)
CONFIG = (
    "echo nonsense >/etc/ttft/config.toml; systemctl reload ttftd;"
    " wait_for logged 'configuration not taken'; active && echo active;"
    " printf '[spike]\\nmin_ms = 111.0\\n' >/etc/ttft/config.toml; systemctl reload ttftd;"
    " wait_for logged 'read again: spike changed';"
    " journalctl -u ttftd -o cat --no-pager | grep -o 'configuration [nr].*'"
)
VERSION = "ttft --version; ttft status | head -1; cat /etc/ttft/config.toml"


def package_from_nothing(older: str, package: str) -> Steps:
    """The older package, a session with it, the newer one over it."""
    return {
        "install": f"dpkg -i /mnt/out/{older}",
        **FIRST_STEPS,
        "config": CONFIG,
        **LAST_STEPS,
        "refused": "ttft service uninstall",
        "upgrade": f"dpkg -i --force-confold /mnt/out/{package}",
        "upgraded": f"{VERSION}; ttft requests --json",
    }


def package_to_nothing(older: str, package: str) -> Steps:
    """After a boot: what may happen to it, the older package again, then none."""
    return {
        "booted": "wait_for active; ttft requests --json",
        "killed": KILLED,
        "hang": HANG,
        "downgrade": f"{_STATE}; dpkg -i --force-confold /mnt/out/{older}; echo status $?; {_HASH};"
        " ttft service status; schema 0",
        "again": f"dpkg -i --force-confold /mnt/out/{package}; ttft requests --json",
        "remove": "dpkg -r ttft",
        "removed": "left; ls /var/lib/ttft",
        "purge": "dpkg -P ttft",
        "purged": "left",
    }


def wheel_from_nothing() -> Steps:
    """An older wheel, a session with it, each right taken away, the newer wheel over it."""
    steps = {
        "pip": f"{_UNPACK_PIP} && python3 -m venv --without-pip {VENV} && {_PIP} ttft=={OLDER}"
        f" && ln -s {VENV}/bin/ttft /usr/local/bin/ttft",
        "dry": "ttft service install --dry-run; left",
        "not-root": "useradd -m eve; su eve -c 'ttft service install'",
        "no-systemd": "unshare -m sh -c 'mkdir /tmp/none; mount --bind /tmp/none /run/systemd;"
        " ttft service install'",
        "status-none": "ttft service status",
        "install": "ttft service install",
        "twice": "ttft service install",
        "unit": "grep -o '^ExecStart=.*' /etc/systemd/system/ttftd.service",
        **FIRST_STEPS,
        "service-status": "su - alice -c 'ttft service status --json'",
        **LAST_STEPS,
    }
    for name in CAPABILITIES:
        then = "ttft service status" if name in NEEDED else f"SHOWN_S=30; {_SIGHT}"
        steps[f"without-{name}"] = f"without {name}; {then}"
    steps["with-all"] = f"undo without; {_SIGHT}"
    steps["from-home"] = _FROM_HOME
    steps["pip-upgrade"] = f"{_PIP} ttft=={__version__}; ttft service status"
    steps["upgrade"] = "ttft service install"
    steps["upgraded"] = f"{VERSION}; ttft requests --json"
    return steps


#: As `pipx install` puts it: into a home, at first one that nobody else may enter.
HOME_VENV = "/home/eve/.local/share/pipx/venvs/ttft"
_FROM_HOME = (
    f"mkdir -p {HOME_VENV}; cp -a {VENV}/. {HOME_VENV}; chmod 700 /home/eve;"
    f" sed -i '1s,{VENV},{HOME_VENV},' {HOME_VENV}/bin/ttft*; chown -R eve: /home/eve;"
    f" {HOME_VENV}/bin/ttft service install; active && chmod o+x /home/eve;"
    f" {HOME_VENV}/bin/ttft service install; wait_for active; property ExecStart;"
    " ttft service install; ttft requests --json | grep -c outcome"
)
#: What the daemon sees with the rights it has; a model is loaded before its eyes.
_SIGHT = (
    "ttft doctor; echo doctor $?; if ttft status --json | grep '\"port\"'; then before=$(count);"
    " ask alpha; ask beta; wait_for more_than $((before + 1));"
    " PATIENCE=${SHOWN_S:-$PATIENCE} wait_for cached; ttft models --json; fi"
)


def wheel_to_nothing(package: str) -> Steps:
    """After a boot: the older wheel with a newer history, then nothing; at last the package."""
    return {
        "booted": "wait_for active; ttft requests --json",
        "killed": KILLED,
        "hang": HANG,
        "downgrade": f"{_STATE}; {_PIP} ttft=={OLDER}; ttft service install; echo status $?;"
        f" {_HASH}; ttft service status; schema 0",
        "again": f"{_PIP} ttft=={__version__}; ttft service install; ttft requests --json",
        "uninstall": "ttft service uninstall",
        "uninstalled": "left",
        "purge": "ttft service install >/dev/null && ttft service uninstall --purge",
        "purged": "left",
        "package": f"rm /usr/local/bin/ttft; dpkg -i /mnt/out/{package}; active && ttft status",
        "package-purge": "dpkg -P ttft; left",
    }


def bundle(archive: str) -> Steps:
    """On a system without Python or libbpf whose own folders are read-only."""
    folder = "/data/" + archive.removesuffix(".tar.gz")
    path = f"PATH={folder}/bin:$PATH;"
    return {
        "bare": "rm -rf /usr/bin/python3* /usr/lib/python3* /usr/lib/*/libbpf*; mkdir -p /data;"
        " mount -t tmpfs data /data; mount -t tmpfs state /var/lib;"
        f" tar -xzf /mnt/out/{archive} -C /data;"
        " for at in /etc /usr; do mount --bind $at $at; mount -o remount,bind,ro $at; done;"
        " touch /etc/x; touch /usr/x; command -v python3",
        "bundle-install": f"{folder}/install",
        "bundle-server": f"{path} serve && wait_for watched",
        "bundle-ask": f"{path} ask alpha; ask alpha; wait_for answered 2; ttft requests --json",
        "bundle-doctor": f"{folder}/bin/ttft doctor",
        "bundle-unit": "systemctl show -p FragmentPath,UnitFileState,ActiveState ttftd",
        "bundle-twice": f"{folder}/install",
        "bundle-exposure": "systemd-analyze security ttftd | tail -1",
        "bundle-uninstall": f"{folder}/uninstall --purge",
        "bundle-left": f"left; ls /var/lib; ls /var/lib/private; ls {folder}",
    }
