"""Whether this process shares the host's view: what the kernel tells is in the host's terms."""

from __future__ import annotations

import os
from typing import Literal

Kind = Literal["user", "pid", "cgroup"]
#: Inodes of the first namespaces (include/linux/proc_ns.h): fixed since Linux 3.8 and 4.6.
_FIRST = {"cgroup": 0xEFFFFFFB, "pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}


def foreign(kind: Kind) -> bool:
    """Whether this process is in another namespace than the host's; not if that is unknown."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino != _FIRST[kind]
    except OSError:
        return False
