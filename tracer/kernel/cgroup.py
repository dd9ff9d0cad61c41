"""Where the cgroup v2 hierarchy is."""

from __future__ import annotations

from pathlib import Path

ADVICE = "mkdir -p /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified"


def root() -> str | None:
    """The mount of the hierarchy's root, or None; one that another mount hides does not count."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and before.split()[3] == "/":
            place = before.split()[4].replace("\\040", " ")
            if Path(place, "cgroup.procs").exists():
                return place
    return None
