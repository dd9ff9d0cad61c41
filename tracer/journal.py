"""Structured entries for systemd's journal: what was slow can be asked for there by its fields.

journalctl -u ttftd TTFT_CAUSE=load.disk
journalctl -u ttftd -o json TTFT_MODEL=beta
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from tracer.derived import Derived
from tracer.log import log
from tracer.render_units import clean, duration

SOCKET = "/run/systemd/journal/socket"
_NOTICE = 5
_VALUE_MAX = 4096


def connected(fd: int = 2) -> bool:
    """Whether systemd reads `fd` into its journal."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def slow(derived: Derived, path: str = SOCKET) -> None:
    """An entry for one slow first token; a line on stderr where there is no journal."""
    fields = entry(derived)
    if not (connected() and send(fields, path)):
        log(fields["MESSAGE"])


def entry(derived: Derived) -> dict[str, str]:
    """The fields of an entry; what is unknown is left out."""
    evidence, spike = derived.evidence, derived.spike
    ttft_ms = None if derived.ttft_ns is None else derived.ttft_ns / 1e6
    typical_ms = None if spike.typical_ns is None else spike.typical_ns / 1e6
    usual = "" if typical_ms is None else f" (typically {duration(typical_ms)})"
    what = f"first token after {duration(ttft_ms)}{usual}"
    if ttft_ms is None:
        what = f"no first token after {duration(derived.window_ns / 1e6)}"
    cause = spike.cause or "unknown"
    fields: dict[str, object] = {
        "MESSAGE": f"request {evidence.id} for {derived.model or 'a model unknown'}: {what}, "
        f"{cause}. {spike.because or ''}".rstrip(),
        "TTFT_REQUEST": evidence.id,
        "TTFT_SERVER": evidence.server,
        "TTFT_MODEL": derived.model,
        "TTFT_CAUSE": cause,
        "TTFT_WHY": " ".join(spike.why) or None,
        "TTFT_MS": None if ttft_ms is None else f"{ttft_ms:.3f}",
        "TTFT_TYPICAL_MS": None if typical_ms is None else f"{typical_ms:.3f}",
        "TTFT_OUTCOME": derived.outcome,
        "TTFT_ADVICE": spike.advice,
    }
    return {key: clean(value)[:_VALUE_MAX] for key, value in fields.items() if value is not None}


def send(fields: Mapping[str, str], path: str = SOCKET) -> bool:
    """Hand an entry to the journal, in its own protocol; False where it does not take it."""
    lines = {"SYSLOG_IDENTIFIER": "ttftd", "PRIORITY": str(_NOTICE), **fields}
    # `clean` leaves no newline in a value, so none needs the binary form.
    data = "".join(f"{key}={value}\n" for key, value in lines.items()).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(data, path)
        return True
    return False
