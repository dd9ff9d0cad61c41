"""What ran while a request waited: the most frequent functions of its long stages."""

from __future__ import annotations

from tracer.render import COLUMNS, Json, Paint, columns
from tracer.render_units import fit

#: A stage is long above this share of the window, or so many milliseconds.
_LONG_SHARE = 0.1
_LONG_MS = 1000.0
_MODULE = 24
_NAME = COLUMNS - 6 - _MODULE - 4
_WITHOUT = {"[made]": "code made while running", "[vdso]": "code of the kernel's"}


def ran(answer: Json, paint: Paint) -> list[str]:
    """Lines of `ttft show`; none where nothing was sampled, or an older daemon answers."""
    found = answer["evidence_detail"].get("stacks") or []
    spent = answer["stages_ms"]
    window = sum(answer["phases_ms"].values())
    lines: list[str] = []
    for stage in found:
        took = spent.get(stage["stage"], 0.0)
        if took >= _LONG_MS or took >= _LONG_SHARE * window:
            lines += _stage(stage, paint)
    return [paint("head", "What ran"), *lines] if lines else []


def _stage(stage: Json, paint: Paint) -> list[str]:
    busy = f"{stage['processors']:.1f} processors busy, {stage['samples']} samples"
    lines = [f"  {paint(stage['stage'].partition('.')[0], stage['stage'])}: {busy}"]
    for one in stage["functions"]:
        module = one["module"]
        name = one["function"] or _WITHOUT.get(module, "(code without a name)")
        where = module if module.startswith("[") else module.rpartition("/")[2]
        share = f"{100 * one['share']:.0f} %"
        row = [(share, -6), (fit(name, _NAME), _NAME), (fit(where, _MODULE), _MODULE)]
        lines.append(columns(row).rstrip())
    return lines
