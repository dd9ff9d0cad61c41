"""The one error type users see: what happened, and what to do."""

from __future__ import annotations


class TtftError(Exception):
    """Printed as message and hint by the command line, with `exit_code` (1 failed, 2 usage,
    3 no daemon)."""

    def __init__(self, message: str, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class RecordError(TtftError):
    """A recording, or a record in it, cannot be read."""


class ConfigError(TtftError):
    """The configuration file is wrong; the message names file and line where known."""


class StoreError(TtftError):
    """The history cannot be read or written."""


class KernelError(TtftError):
    """The kernel or the host does not allow what is needed."""
