"""Kernel tests run wherever they can: there, one that is skipped has failed."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

import build_bpf
from tests.workloads import bpf, interrupts

NEEDS_KERNEL = ("kernel", "e2e")
NEEDS_OBJECT = Path(__file__).parent / "bpf"
_refusal = bpf.refusal()
_no_compiler = os.geteuid() != 0 and build_bpf.find("clang") is None
_not_run: list[str] = []
interrupts.heed()


def pytest_report_header() -> str:
    """The kernel's answer, before anything runs."""
    return f"kernel tests: {f'not run ({_refusal})' if _refusal else 'run'}"


def _cannot_run(item: pytest.Item) -> bool:
    if _no_compiler and NEEDS_OBJECT in item.path.parents:
        return True
    return _refusal is not None and any(map(item.get_closest_marker, NEEDS_KERNEL))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs a kernel that takes BPF, or a compiler, where there is none."""
    left_out = list(filter(_cannot_run, items))
    if left_out:
        _not_run.extend(item.nodeid for item in left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


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
        compiler = ", and there is no clang to build the object" if _no_compiler else ""
        reason = f"a kernel with BPF: {_refusal}{compiler}"
        terminalreporter.write_line(f"{len(_not_run)} tests need {reason}")
        for path in sorted({Path(nodeid.partition("::")[0]).as_posix() for nodeid in _not_run}):
            terminalreporter.write_line(f"  {path}")
