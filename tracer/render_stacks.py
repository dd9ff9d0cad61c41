"""What ran while a request waited: the most frequent functions of its long stages."""

from __future__ import annotations

from tracer.render import COLUMNS, Json, Paint, columns

#: A stage is long above this share of the window, or so many milliseconds.
_LONG_SHARE = 0.1
_LONG_MS = 1000.0
_MODULE = 24
_NAME = COLUMNS - 8 - _MODULE - 4
_WITHOUT = {"[made]": "code made while running", "[vdso]": "the kernel's vdso"}


def ran(answer: Json, paint: Paint) -> list[str]:
    """Lines of `ttft show`; none where it was not slow or nothing was sampled."""
    if not answer["spike"]["is_spike"] and answer["ttft_ms"] is not None:
        return []
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
    name, busy = stage["stage"], stage["processors"]
    text = f": {busy:.1f} processors busy, {stage['samples']} samples"
    lines = [f"  {paint(name.partition('.')[0], name)}{text}"]
    for one in stage["modules"][:1]:
        lines.append(columns([(_share(one), -8), (f"all of {_file(one['module'])}", COLUMNS - 12)]))
    for one in stage["functions"]:
        called = one["function"] or "(without a name)"
        row = [(_share(one), -8), (called, _NAME), (_file(one["module"]), _MODULE)]
        lines.append(columns(row))
    return lines


def _file(module: str) -> str:
    return _WITHOUT.get(module) or module.rpartition("/")[2]


def _share(one: Json) -> str:
    return f"{100 * one['share']:.0f} %"
