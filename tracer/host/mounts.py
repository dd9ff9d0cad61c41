"""What file systems a process sees, from /proc/PID/mountinfo.

Anybody may mount as much as he likes in a namespace of his own: only so much is read, one look is
good for all that happened before it, and who keeps us busy with looks has to do with an older one.
"""

from __future__ import annotations

import time
from itertools import islice

import msgspec

from tracer.host import proc, reach

#: File systems whose pages come over a network.
NETWORK_FS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.rclone", "afs"}
)
Device = tuple[int, int]
"""(major, minor)"""

_MOUNTS_MAX = 32_768
#: One upon the other, 20,000 take the kernel seconds.
_READ_S = 0.25
_LINES_AT_ONCE = 64
#: Of all looks that are kept together.
_KEPT_MAX = 2 * _MOUNTS_MAX
_SPACES_MAX = 1024
_SPENT_MAX_S = 0.5
#: So long what was seen is taken to be so still: a namespace for a process, a device that is there.
_SAME_NS = 1_000_000_000


class Mount(msgspec.Struct, frozen=True):
    fs: str
    source: str


class Mounts(msgspec.Struct):
    """As a process saw them at `at_ns`; `numbers`: of mounts, as /proc/PID/fdinfo names them.

    `whole`: there are no more.
    """

    at_ns: int
    whole: bool = True
    devices: dict[Device, Mount] = {}
    numbers: dict[int, Device] = {}

    def numbered(self, number: int) -> Mount | None:
        device = self.numbers.get(number)
        return None if device is None else self.devices.get(device)


def served(fs: str) -> bool:
    """Whether the pages of such a file system come from a process or over a network."""
    return fs in NETWORK_FS or fs in ("fuse", "fuseblk") or fs.startswith("fuse.")


def read(tgid: int) -> Mounts:
    """Those that a process sees; none if it is gone, so many as can be had in a short time."""
    found = Mounts(time.monotonic_ns())
    until_s = time.monotonic() + _READ_S
    seen: dict[bytes, Device] = {}
    try:
        # Names may hold all that str.splitlines() takes for a line end.
        with open(f"/proc/{reach.speaker(tgid) or tgid}/mountinfo", "rb") as file:
            for at, line in enumerate(islice(file, _MOUNTS_MAX), 1):
                number, _, name, rest = line.split(b" ", 3)
                device = seen.get(name)
                if device is None:  # many are only other views of one file system
                    major, _, minor = name.partition(b":")
                    device = seen[name] = (int(major), int(minor))
                    tail = rest.partition(b" - ")[2].split(b" ")
                    if len(tail) > 1:
                        found.devices[device] = Mount(_text(tail[0]), _text(tail[1]))
                found.numbers[int(number)] = device
                if at % _LINES_AT_ONCE == 0 and time.monotonic() > until_s:
                    break
            found.whole = not file.readline()
    except (OSError, ValueError):
        pass  # what was read so far holds
    return found


def _text(raw: bytes) -> str:
    """mountinfo writes space, tab, newline and backslash in octal."""
    text = raw.removesuffix(b"\n").decode("utf-8", "replace")
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


class Looks:
    """Kept by mount namespace; asked by one thread."""

    def __init__(self) -> None:
        self._patience = reach.Patience(spent_max_s=_SPENT_MAX_S)
        self._kept: dict[int, Mounts] = {}
        #: In which namespace a process was, and when that was seen.
        self._spaces: dict[int, tuple[int, int]] = {}

    def of(
        self, tgid: int, ts_ns: int, sake: int | None = None, device: Device | None = None
    ) -> Mounts:
        """What it sees, as of some time after `ts_ns`: an older look, or none, where the process
        for whose `sake` we look, that one if it is not said, has kept us busy too much.

        Where a `device` is asked for, a look of lately that has it will do.
        """
        space = self._space(tgid, ts_ns)
        known = self._kept.get(space)
        if known is not None and (
            known.at_ns >= ts_ns or (device in known.devices and known.at_ns >= ts_ns - _SAME_NS)
        ):
            return known
        whose = tgid if sake is None else sake
        if not self._patience.may_ask(whose):
            return known or Mounts(0)
        began = time.monotonic()
        found = read(tgid)
        self._patience.charge(whose, time.monotonic() - began)
        if space:
            self._keep(space, found)
        return found

    def _space(self, tgid: int, ts_ns: int) -> int:
        seen_ns, space = self._spaces.get(tgid, (-1, 0))
        if seen_ns < ts_ns - _SAME_NS or not space:
            if len(self._spaces) >= _SPACES_MAX:
                self._spaces.clear()
            seen_ns, space = time.monotonic_ns(), proc.namespace(tgid, "mnt")
            self._spaces[tgid] = seen_ns, space
        return space

    def _keep(self, space: int, found: Mounts) -> None:
        self._kept.pop(space, None)
        self._kept[space] = found
        while len(self._kept) > 1 and sum(len(m.numbers) for m in self._kept.values()) > _KEPT_MAX:
            del self._kept[next(iter(self._kept))]


LOOKS = Looks()
"""Of the thread that translates what happens."""
