"""Import order is pipeline order: what ARCHITECTURE.md's table says, the modules do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tracer"

IMPURE = {
    "asyncio", "click", "ctypes", "fcntl", "http", "mmap", "os", "pathlib", "psutil", "pyroute2",
    "random", "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile",
    "threading", "time", "uvicorn", "starlette",
}  # fmt: skip
"""Ways to a clock, a file, a socket, another process."""


def table() -> list[tuple[list[str], bool]]:
    """Rows of the table: (modules or packages, relative to tracer/; pure)."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    lines = text.partition("| module | concern | pure |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = []
    for line in lines:
        names, _, pure = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append((re.findall(r"`([^`]+)`", names), pure.startswith("yes")))
    return rows


ROWS = table()


def holds_code(path: Path) -> bool:
    """Whether it is more than the name of a package."""
    return path.name != "__init__.py" or (
        path.parent != PACKAGE and len(ast.parse(path.read_text()).body) > 1
    )


MODULES = sorted(
    str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if holds_code(path)
)


@cache
def row_of(module: str) -> int:
    """Row of `requests.py` or `http/reader.py`; -1 when the table does not have it."""
    for number, (names, _) in enumerate(ROWS):
        for name in names:
            if module == name or (name.endswith("/") and module.startswith(name)):
                return number
    return -1


@cache
def imported(module: str) -> set[str]:
    """Modules of tracer that this one imports, as paths."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            source = node.module or ""
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if path := path_of(name):
                found.add(path)
    return (found & set(MODULES)) - {module}


def path_of(name: str) -> str | None:
    """The file behind `tracer.http.reader` or `tracer.http.reader.HttpReader`."""
    parts = name.split(".")
    if parts[0] != "tracer":
        return None
    for end in (len(parts), len(parts) - 1):
        base = "/".join(parts[1:end])
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if base and (PACKAGE / path).is_file():
                return path
    return None


@cache
def outside(module: str) -> set[str]:
    """Top-level packages from elsewhere that this module imports."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module
            # Paths that are only words touch no file.
            and not all(alias.name.startswith("Pure") for alias in node.names)
        ):
            found.add(node.module.partition(".")[0])
    return found - {"tracer"}


def test_the_table_is_read() -> None:
    assert row_of("errors.py") == 0
    assert ROWS[row_of("records.py")] == (["records.py"], True)
    assert row_of("http/reader.py") == row_of("http/tokens.py") > row_of("records.py")
    assert not ROWS[row_of("api.py")][1]


def test_every_module_is_in_the_table() -> None:
    assert [module for module in MODULES if row_of(module) < 0] == []


def test_the_table_names_nothing_that_is_not_there() -> None:
    names = [name for row, _ in ROWS for name in row]
    assert [name for name in names if not (PACKAGE / name).exists()] == []


def test_modules_import_only_from_above() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in MODULES
        for other in sorted(imported(module))
        if row_of(other) > row_of(module)
    ]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: imported(module) for module in MODULES if not module.endswith("__init__.py")}
    order = list(TopologicalSorter(graph).static_order())
    assert set(graph) <= set(order)


@pytest.mark.parametrize("module", [m for m in MODULES if row_of(m) >= 0 and ROWS[row_of(m)][1]])
def test_pure_modules_reach_no_clock_file_or_socket(module: str) -> None:
    assert outside(module) & IMPURE == set()
    impure = [other for other in imported(module) if not ROWS[row_of(other)][1]]
    assert impure == []


def test_only_the_daemon_wires() -> None:
    users = {module for module in MODULES if "daemon.py" in imported(module)}
    assert users == {"commands/daemon.py"}


def test_importing_does_no_work() -> None:
    """Nothing is opened, started or connected by an import alone."""
    names = [
        f"tracer.{module[:-3].replace('/', '.')}".removesuffix(".__init__") for module in MODULES
    ]
    program = (
        "import importlib, sys, threading\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: event in ('socket.connect', 'sqlite3.connect',"
        " 'subprocess.Popen') and opened.append(event))\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(opened, threading.active_count())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[] 1\n", "")
