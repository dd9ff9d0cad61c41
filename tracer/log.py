"""The daemon's own words."""

from __future__ import annotations

import contextlib
import sys

from tracer.render_units import clean


def log(message: str) -> None:
    """One line to stderr, which systemd keeps; whoever read it may be gone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"ttftd: {clean(message)}\n")
        sys.stderr.flush()
