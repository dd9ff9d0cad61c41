"""Programs that others collect with; only for `-m collectors` (`make test-collectors`)."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAMS = ("prometheus", "mmdebstrap", "chromium")
PACKAGES = ("opentelemetry", "playwright", "viztracer")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves them out of a run that does not name them; one that does needs what they need."""
    if "collectors" not in str(config.option.markexpr):
        return True
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    packages = [name for name in PACKAGES if find_spec(name) is None]
    if programs or packages:
        raise pytest.UsageError(f"missing: {', '.join(programs + packages)}; make test-collectors")
    return None
