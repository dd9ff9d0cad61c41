"""The choice among variants, from a table made up here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tracer.errors import KernelError
from tracer.kernel import probes, variants
from tracer.kernel.features import Features, wanted
from tracer.kernel.probes import Choice, Probe, Selection

FENTRY = Probe("files", "a", "fentry/sys_read", False, "reads", "fentry")
POINT = Probe("files", "b", "tp_btf/sys_enter", False, "reads", "tracepoint", ("BPF_FUNC_x",))
LAST = Probe("files", "c", "perf_event", False, "reads", "perf")
MINOR = Probe("minor", "d", "perf_event", False, "times", "tracepoint")
ALWAYS = Probe("lifecycle", "e", "tp_btf/sched_process_fork", True, "children")
TABLE = (FENTRY, POINT, LAST, MINOR, ALWAYS)
ALL = frozenset({"sys_read", "btf_trace_sys_enter", "BPF_FUNC_x", "btf_trace_sched_process_fork"})


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Groups with three ways; `minor` comes with `files`."""
    ways = {"files": ("fentry", "tracepoint", "perf")}
    monkeypatch.setattr(variants, "VARIANTS", ways)
    monkeypatch.setattr(variants, "FOLLOWS", {"minor": "files"})
    yield


def chosen(names: frozenset[str], fentry: str | None = None, forced: str = "auto") -> Selection:
    return variants.select(TABLE, Features(names, fentry, False).lacks, forced)


def test_what_a_program_needs() -> None:
    assert wanted(FENTRY) == ["sys_read"]
    assert wanted(POINT) == ["btf_trace_sys_enter", "BPF_FUNC_x"]
    assert wanted(LAST) == []


@pytest.mark.usefixtures("table")
def test_the_preferred_one_that_the_kernel_has() -> None:
    assert chosen(ALL) == Selection(
        (FENTRY, ALWAYS), {}, {"files": Choice("files", "fentry", (), ("tracepoint", "perf"))}
    )
    refused = chosen(ALL, fentry="no fentry here")
    assert refused == Selection(
        (POINT, MINOR, ALWAYS), {},
        {"files": Choice("files", "tracepoint", (("fentry", "no fentry here"),), ("perf",))},
    )  # fmt: skip
    assert str(refused.choices["files"]) == "tracepoint (not fentry: no fentry here)"
    assert refused.group("minor") == [MINOR]


@pytest.mark.usefixtures("table")
def test_the_last_one_as_far_as_it_goes() -> None:
    lacking = chosen(frozenset())
    assert lacking.probes == (LAST, ALWAYS)
    assert lacking.lacking == {"e": "this kernel lacks tp_btf/sched_process_fork"}
    assert lacking.choices["files"].passed_over == (
        ("fentry", "this kernel lacks fentry/sys_read"),
        ("tracepoint", "this kernel lacks tp_btf/sys_enter"),
    )
    no_helper = chosen(ALL - {"BPF_FUNC_x", "sys_read"})
    assert no_helper.choices["files"].passed_over[1] == (
        "tracepoint", "this kernel lacks BPF_FUNC_x",
    )  # fmt: skip


@pytest.mark.usefixtures("table")
def test_forced() -> None:
    assert chosen(ALL, forced="tracepoint").probes == (POINT, MINOR, ALWAYS)
    assert chosen(ALL, forced="fentry").probes == (FENTRY, ALWAYS)
    with pytest.raises(KernelError, match="the probe group files cannot use fentry: not allowed"):
        chosen(ALL, fentry="not allowed", forced="fentry")


@pytest.mark.usefixtures("table")
def test_what_stays_costs_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "CHEAPEST", {"files": "tracepoint"})
    lacks = Features(ALL, None, False).lacks
    staying = variants.select(TABLE, lacks, stays=("files",))
    assert staying.choices == {"files": Choice("files", "tracepoint", (), ("fentry", "perf"))}
    assert variants.select(TABLE, lacks, stays=("lifecycle",)) == variants.select(TABLE, lacks)


def test_the_table_itself() -> None:
    """Every variant has programs, and every program's variant is one of its group's."""
    for probe in probes.PROBES:
        names = probes.VARIANTS.get(variants.family(probe), ())
        assert probe.variant in ("", *names)
    for group, names in probes.VARIANTS.items():
        used = {p.variant for p in probes.PROBES if variants.family(p) == group}
        assert set(names) <= used
        assert probes.CHEAPEST.get(group, names[0]) in names
