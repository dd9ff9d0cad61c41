"""Guests are booted only when asked for: `-m vm` (`make test-vm`), or with everything in CI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vm import lane, setups
from tests.vm.cache import BuildError
from tests.vm.machine import GuestError, Result

#: Each guest keeps a processor busy.
_AT_ONCE = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the guests out of a run that does not name them."""
    if "vm" in str(config.option.markexpr):
        return
    left_out = [item for item in items if item.get_closest_marker("vm")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _job(item: pytest.Item) -> tuple[Callable[[str], Result], str] | None:
    """The boot that a test looks at."""
    if item.get_closest_marker("vm") is None or not isinstance(item, pytest.Function):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "made_on" in parameters:
        return setups.boot, str(parameters["made_on"])
    return (lane.boot, str(parameters["kernel"])) if "kernel" in parameters else None


@pytest.fixture(scope="session")
def boots(request: pytest.FixtureRequest) -> Iterator[Callable[[pytest.Item], Result]]:
    """`boots(TEST)`: what came of its guest; all that this run wants start at once."""
    jobs = dict.fromkeys(job for item in request.session.items if (job := _job(item)))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {job: pool.submit(job[0], job[1]) for job in jobs}

        def of(item: pytest.Item) -> Result:
            job = _job(item)
            assert job is not None, "only tests marked vm have a guest"
            return running[job].result()

        yield of


@pytest.fixture
def guest(boots: Callable[[pytest.Item], Result], request: pytest.FixtureRequest) -> Result:
    """The guest of the test's kernel or host, which has done its work."""
    try:
        return boots(request.node)
    except (BuildError, GuestError) as error:
        pytest.fail(str(error), pytrace=False)
