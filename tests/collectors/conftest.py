"""Programs that others collect with; only for `-m collectors` (`make test-collectors`)."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves them out of a run that does not name them; one that does needs what they need."""
    if "collectors" not in str(config.option.markexpr):
        return True
    if shutil.which("prometheus") is None or find_spec("opentelemetry") is None:
        raise pytest.UsageError("no prometheus or no opentelemetry-proto: make test-collectors")
    return None
