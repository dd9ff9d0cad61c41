"""Hosts as they come: guests in which set-ups are made one after the other, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.vm import lane
from tests.vm.guest import setups as guest
from tests.vm.guest.setups_making import Setup
from tests.vm.machine import Machine, Options, Result
from tracer.render_state import doctor

__all__ = ["EXPECTED", "KERNEL", "SETUPS", "Setup", "boot", "screen"]
EXPECTED = lane.EXPECTED / "setups"
KERNEL = "5.10"
SETUPS = guest.SETUPS
OUT = lane.OUT / "setups"


def boot(kernel: str) -> Result:
    """A guest with cgroup v1 and nothing else mounted; all it leaves is in build/vm/setups."""
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.*"):
        old.unlink()
    options = Options(cgroup="v1", mounts=(), command_s=lane.TIMEOUT_S)
    commands = ["python3 -m tests.vm.guest.setups"]
    return Machine(kernel, options).run(commands, timeout_s=lane.TIMEOUT_S, out=OUT)


def screen(out: Path, name: str) -> str:
    """What a set-up changes in the doctor's answer, as it is read: against `v2`, a usual host."""
    found, usual = _facts(out, name), _facts(out, "v2")
    changed = [fact for fact in found if fact not in usual]
    lines = doctor({"facts": changed})[:-2]  # without the sum
    told = {fact["name"] for fact in found}
    if any(fact["name"] not in told for fact in usual):
        lines.append("(less is told)")
    return "\n".join(lines) + "\n"


def _facts(out: Path, name: str) -> list[dict[str, Any]]:
    answer = lane.normal(json.loads((out / f"{name}.doctor.json").read_text()))
    facts: list[dict[str, Any]] = answer["facts"]
    return facts
