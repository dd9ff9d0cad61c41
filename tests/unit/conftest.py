"""A client and a daemon to ask, for all tests of commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli_runs import Runner
from tests.unit.fake_daemon import FakeDaemon, serving


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with serving(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Runner:
    return Runner(capfdbinary)


@pytest.fixture
def ask(capfdbinary: pytest.CaptureFixture[bytes], daemon: FakeDaemon) -> Runner:
    return Runner(capfdbinary, daemon.socket)
