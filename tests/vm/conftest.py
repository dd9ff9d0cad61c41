"""Guests are booted only when asked for: `-m vm` (`make test-vm`), or with everything in CI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.vm import lane
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


@pytest.fixture(scope="session")
def boots(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Result]]:
    """`boots(KERNEL)`: what came of that guest; those wanted by this run start at once."""
    wanted = []
    for item in request.session.items:
        kernel = getattr(item, "callspec", None) and item.callspec.params.get("kernel")  # type: ignore[attr-defined]
        if kernel is not None and item.get_closest_marker("vm") and kernel not in wanted:
            wanted.append(kernel)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running: dict[str, Future[Result]] = {k: pool.submit(lane.boot, k) for k in wanted}
        yield lambda kernel: running[kernel].result()


@pytest.fixture
def guest(boots: Callable[[str], Result], kernel: str) -> Result:
    """The guest of the test's kernel, which has done its work."""
    try:
        return boots(kernel)
    except (BuildError, GuestError) as error:
        pytest.fail(str(error), pytrace=False)
