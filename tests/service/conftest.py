"""What is installed is made here; guests are booted only for `-m service`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pack import __main__ as pack
from pack import wheels
from tests.service import made, server, stories
from tests.service.machine import Story

ROOT = Path(__file__).parents[2]
ARCH = "amd64"
#: For each step's time and status.
TIMES = ROOT / "build" / "service"
#: Far more than a boot with all its steps takes on a quiet machine.
BOOT_S = 2400


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the guests out of a run that does not name them."""
    if "service" in str(config.option.markexpr):
        return
    left_out = [item for item in items if item.get_closest_marker("service")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@dataclass(frozen=True)
class Made:
    """What is handed out: the Debian package, the bundle, the wheel that both hold."""

    package: Path
    archive: Path
    wheel: Path


def _debian_12(out: Made, folder: Path) -> Story:
    """Its package, an older one before it, and then the bundle without a Python."""
    names = made.older_package(out.package, folder).name, out.package.name
    brought = [folder / names[0], out.package, out.archive]
    story = Story("6.1", "bookworm", folder, brought, server.disk())
    story.boot(stories.package_from_nothing(*names), BOOT_S)
    story.boot(stories.package_to_nothing(*names) | stories.bundle(out.archive.name), BOOT_S)
    return story


def _debian_13(out: Made, folder: Path) -> Story:
    """A wheel as pipx installs it, then the package."""
    needed = wheels.needed(out.wheel, "3.13", "x86_64", folder / "wheels")
    brought = [out.wheel, made.older_wheel(out.wheel, folder), *needed, out.package]
    story = Story("6.12", "trixie", folder, brought, server.disk())
    story.boot(stories.wheel_from_nothing(), BOOT_S)
    story.boot(stories.wheel_to_nothing(out.package.name), BOOT_S)
    return story


STORIES: dict[str, Callable[[Made, Path], Story]] = {
    "debian_12": _debian_12,
    "debian_13": _debian_13,
}


def _told(name: str, out: Made, folder: Path) -> Story:
    story = STORIES[name](out, folder)
    TIMES.mkdir(parents=True, exist_ok=True)
    (TIMES / f"{name}.txt").write_text("".join(f"{line}\n" for line in story.times))
    return story


def _beside(work: Callable[[], Story]) -> Future[Story]:
    """In a thread that ends, and its guest with it, when the run is given up."""
    future: Future[Story] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.fixture(scope="session")
def guests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Future[Story]]:
    """The stories that tests ask for, side by side: each guest has one processor."""
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    pack.DIST.mkdir(exist_ok=True)
    (package,), (archive,) = pack.debs([ARCH]), pack.bundles([ARCH])
    (wheel,) = pack.DIST.glob("ttft-*.whl")
    out = Made(package, archive, wheel)
    return {
        name: _beside(partial(_told, name, out, tmp_path_factory.mktemp(name)))
        for name in STORIES
        if name in asked
    }


@pytest.fixture(scope="session")
def debian_12(guests: dict[str, Future[Story]]) -> Story:
    """The story of Debian 12, to its end."""
    return guests["debian_12"].result()


@pytest.fixture(scope="session")
def debian_13(guests: dict[str, Future[Story]]) -> Story:
    """The story of Debian 13, to its end."""
    return guests["debian_13"].result()
