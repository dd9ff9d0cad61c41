"""Ctrl-C for what is started here, wherever we were started from."""

from __future__ import annotations

import signal


def heed() -> None:
    """A shell ignores interrupts in what it puts into the background, and so would our children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
