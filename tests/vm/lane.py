"""What `make test-vm` runs on each kernel, in one boot, and what came of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from tests.vm import catalogue, standins
from tests.vm.catalogue import ROOT
from tests.vm.machine import Machine, Options, Result

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
OUT = ROOT / "build" / "vm"
TIMEOUT_S = 900
#: The verifier's limit, and how near a program may come.
LIMIT = 1_000_000
NEAR = 0.75
GROWTH = 1.1
#: Expected files are written, not compared.
RENEW = bool(os.environ.get("TTFT_VM_RENEW"))
_TROUBLE = re.compile(r"BUG:|WARNING:|Oops|general protection|Call Trace|rcu.*stall|Kernel panic")
_AMOUNT = re.compile(r"\b\d+(?:\.\d+)?(?= ?(?:ns|us|ms|s|B|kB|KiB|MB|MiB|GB|GiB)\b)")
_VERSIONS = ("kernel", "libbpf")


def kernels() -> list[str]:
    """Those of the lane, or those named in $TTFT_VM_KERNELS."""
    return os.environ.get("TTFT_VM_KERNELS", "").split() or catalogue.lane()


def checks() -> list[str]:
    """Names of what runs in every guest: guest/check_NAME.py."""
    return sorted(path.stem.removeprefix("check_") for path in HERE.glob("guest/check_*.py"))


def boot(kernel: str) -> Result:
    """One boot for all checks; everything it leaves is in build/vm/KERNEL."""
    commands = [f"python3 tests/vm/guest/check_{name}.py" for name in checks()]
    standins.prepare(kernel)
    return _run(kernel, Options(command_s=TIMEOUT_S), commands, OUT / kernel)


def _run(kernel: str, options: Options, commands: list[str], out: Path) -> Result:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.*"):
        old.unlink()
    return Machine(kernel, options).run(commands, timeout_s=TIMEOUT_S, out=out)


def trouble(dmesg: str) -> list[str]:
    """What the kernel complained of."""
    return [line for line in dmesg.splitlines() if _TROUBLE.search(line)]


def normal(doctor: dict[str, Any]) -> dict[str, Any]:
    """A doctor's answer without what differs from one day to the next."""
    facts = []
    for fact in doctor["facts"]:
        texts = {
            key: _AMOUNT.sub("N", text) if isinstance(text, str) else text
            for key, text in fact.items()
        }
        facts.append(texts | ({"value": "(version)"} if fact["name"] in _VERSIONS else {}))
    return doctor | {"facts": facts}


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Fact by fact, in words."""
    before, after = _facts(expected), _facts(found)
    told = [
        f"{name}: expected {before.get(name)}, found {after.get(name)}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
    return told or [f"expected {expected}, found {found}"]


def _facts(doctor: dict[str, Any]) -> dict[str, str]:
    return {fact["name"]: json.dumps(fact) for fact in doctor["facts"]}


def nearing(expected: dict[str, int | None], found: dict[str, int | None]) -> list[str]:
    """Programs that take the verifier noticeably more than they did, or nearly all it may."""
    told = []
    for name, count in found.items():
        if name not in expected:
            told.append(f"{name} is new: {count} instructions")
            continue
        before = expected[name]
        if count is None or before is None:
            if count is not before:
                told.append(f"{name}: expected {before} instructions, found {count}")
            continue
        if count > before * GROWTH:
            told.append(f"{name} grew from {before} to {count} instructions")
        if count > LIMIT * NEAR:
            told.append(f"{name} takes {count} of {LIMIT} instructions")
    told += [f"{name} is not loaded any more" for name in expected if name not in found]
    return told


def write_json(path: Path, data: object) -> None:
    """As the expected files are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
