"""The daemon's own words."""

from __future__ import annotations

import contextlib
import os
import sys

from tracer.render_units import clean


def log(message: str) -> None:
    """One line to stderr, which systemd keeps; whoever read it may be gone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"ttftd: {clean(message)}\n")
        sys.stderr.flush()


def debug(message: str) -> None:
    """The same at debug level: only where TTFT_DEBUG is set; systemd reads the level."""
    if os.environ.get("TTFT_DEBUG"):
        level = "<7>" if os.environ.get("JOURNAL_STREAM") else ""
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{level}ttftd: {clean(message)}\n")
            sys.stderr.flush()
