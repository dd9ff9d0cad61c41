"""What the end-to-end tests share: models, a daemon, a prompt client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.workloads import llama, models
from tests.workloads.ttftd import UNIT_NICE, Ttftd

ROOT = Path(__file__).parents[2]
Ask = Callable[[Callable[[], llama.Reply]], llama.Reply]


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder with the demo's models alpha and beta."""
    folder = ROOT / "build" / "models"
    models.assemble(folder)
    return folder


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Ttftd]:
    """A daemon of the test's own."""
    with Ttftd(tmp_path / "ttftd", nice=UNIT_NICE) as running:
        yield running


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    """Runs one exchange in a thread that wakes at once, so that its times are the wire's."""
    with ThreadPoolExecutor(1, initializer=llama.be_prompt) as threads:
        yield lambda exchange: threads.submit(exchange).result()
