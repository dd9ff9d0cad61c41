"""In a guest that booted with cgroup v1 and nothing else mounted: hosts as they come.

Its kernel is one that counts BPF maps as locked memory.
"""

from __future__ import annotations

import time
from resource import RLIM_INFINITY

from tests.vm.guest import setups_containers
from tests.vm.guest.setups_making import (
    ALL_RIGHTS,
    CAP_SYS_RESOURCE,
    OUT,
    SERVICE_RIGHTS,
    Setup,
    try_out,
)

_V2 = "umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; "
_UNIFIED = "mkdir -p /sys/fs/cgroup/unified; mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
_TYPES = "/run/types"
_HIDE = f"{_V2} cp /sys/kernel/btf/vmlinux {_TYPES}; mount -t tmpfs none /sys/kernel/btf"
_DEBUGFS = "mount -t debugfs none /sys/kernel/debug; ls /sys/kernel/debug/tracing"
_STRICT = (
    "echo 2 >/proc/sys/kernel/unprivileged_bpf_disabled; "
    "echo 4 >/proc/sys/kernel/perf_event_paranoid; echo 2 >/proc/sys/kernel/kptr_restrict"
)
_LOCK = (
    "mount -t securityfs none /sys/kernel/security 2>/dev/null || true; "
    "echo {level} >/sys/kernel/security/lockdown"
)
_LESS = tuple(right for right in ALL_RIGHTS if right != CAP_SYS_RESOURCE)

SETUPS = (
    Setup("v1"),
    Setup("v1-service", rights=SERVICE_RIGHTS, memlock=RLIM_INFINITY, ttftd=()),
    Setup("hybrid", prepare=_UNIFIED),
    Setup("v2", prepare=_V2),
    Setup("old-tracefs", prepare=_DEBUGFS),
    Setup("no-sysfs", prepare="umount -R /sys", ttftd=()),
    Setup("no-types", prepare=_HIDE, ttftd=()),
    Setup("types-from-file", prepare=_HIDE, doctor=("--btf", _TYPES), ttftd=("--btf", _TYPES)),
    Setup("unprivileged-container", new=("user", "pid", "cgroup"), ttftd=()),
    Setup("container", new=("pid", "cgroup"), prepare=_V2, ttftd=()),
    Setup("container-host-pid", new=("cgroup",), prepare=_V2, ttftd=()),
    Setup(
        "container-host-cgroup", host=_UNIFIED, new=("cgroup",), prepare=_V2, ttftd=(),
        after="umount /sys/fs/cgroup/unified; rmdir /sys/fs/cgroup/unified",
    ),
    Setup(
        "strict", host=_STRICT, prepare=_V2, rights=SERVICE_RIGHTS,
        memlock=RLIM_INFINITY, ttftd=(),
    ),
    Setup("memlock", prepare=_V2, memlock=1 << 16, ttftd=()),
    Setup("memlock-unraisable", prepare=_V2, memlock=1 << 16, rights=_LESS, ttftd=()),
    Setup("memlock-enough", prepare=_V2, memlock=1 << 26, rights=_LESS, ttftd=()),
    Setup("integrity", host=_LOCK.format(level="integrity"), prepare=_V2, ttftd=()),
    Setup("confidentiality", host=_LOCK.format(level="confidentiality"), ttftd=()),
)  # fmt: skip


def main() -> None:
    """Leaves what `try_out` and `setups_containers` leave."""
    setups_containers.run(OUT)
    for setup in SETUPS:
        begun = time.monotonic()
        try_out(setup)
        print(f"{setup.name}: {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
