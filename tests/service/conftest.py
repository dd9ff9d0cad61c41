"""What is installed is made here; guests are booted only for `-m service`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pack import __main__ as pack

ROOT = Path(__file__).parents[2]
ARCH = "amd64"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the guests out of a run that does not name them."""
    if "service" in str(config.option.markexpr):
        return
    left_out = [item for item in items if item.get_closest_marker("service")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def package() -> Path:
    """The Debian package."""
    pack.DIST.mkdir(exist_ok=True)
    return pack.debs([ARCH])[0]


@pytest.fixture(scope="session")
def archive() -> Path:
    """The bundle."""
    pack.DIST.mkdir(exist_ok=True)
    return pack.bundles([ARCH])[0]
