"""Kernel tests run wherever they can: there, one that is skipped has failed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.workloads import bpf

NEEDS_KERNEL = ("kernel", "e2e")
_refusal = bpf.refusal()
_not_run: list[str] = []


def pytest_report_header() -> str:
    """The kernel's answer, before anything runs."""
    return f"kernel tests: {f'not run ({_refusal})' if _refusal else 'run'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs a kernel that takes BPF, where there is none."""
    if _refusal is None:
        return
    kernel = [item for item in items if any(map(item.get_closest_marker, NEEDS_KERNEL))]
    _not_run.extend(item.nodeid for item in kernel)
    config.hook.pytest_deselected(items=kernel)
    items[:] = [item for item in items if item not in kernel]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A kernel test that skips itself, though the kernel takes BPF, has failed."""
    report = yield
    if report.skipped and any(map(item.get_closest_marker, NEEDS_KERNEL)):
        report.outcome = "failed"
        report.longrepr = f"a kernel test may not be skipped here: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was not run, and why."""
    if _not_run:
        terminalreporter.section("not run here")
        terminalreporter.write_line(f"{len(_not_run)} tests need a kernel with BPF: {_refusal}")
        for path in sorted({Path(nodeid.partition("::")[0]).as_posix() for nodeid in _not_run}):
            terminalreporter.write_line(f"  {path}")
