"""How readings of devices are shown: words, `ttft show`, counters of the trace, models."""

from __future__ import annotations

from msgspec.structs import replace

from tests.unit.build import ms
from tests.unit.evidence_build import NEW, ns
from tests.unit.test_clocks import GPU, reading, slow, throughout
from tests.unit.trace_cases import switch
from tests.unit.trace_rules import check, load, nanoseconds
from tracer import clocks
from tracer.answers import answer, detail
from tracer.case import Case
from tracer.derive import derive
from tracer.export.chrome import dump
from tracer.records import Call, CallWhat, Holder, Telemetry
from tracer.render_show import show
from tracer.wording import because


def test_the_link_of_an_upload() -> None:
    """Its speed counts while weights go over it, its width at any time."""
    d = switch()
    start = d.timeline.start_ns
    intervals = tuple(
        replace(x, stage="transfer.h2d") if x.stage == "load.disk" else x
        for x in d.phases.intervals
    )
    phases = replace(d.phases, intervals=intervals)

    def at(millis: int, generation: int, width: int) -> clocks.Seen | None:
        one = Telemetry(
            ts_ns=start + ms(millis), device=GPU, source="nvml", link_generation=generation,
            link_generation_max=4, link_width=width, link_width_max=16,
        )  # fmt: skip
        return clocks.link(replace(d.evidence, telemetry=(one,)), phases)

    assert at(40, 4, 16) is None
    slow_now, narrow_now, narrow_before = at(40, 1, 16), at(40, 4, 4), at(1, 1, 4)
    assert slow_now is not None and slow_now.link_generation == 1
    assert narrow_now is not None and narrow_now.link_width == 4
    assert at(1, 1, 16) is None, "it saved power before"
    assert narrow_before is not None and narrow_before.link_generation is None


UPLOAD: tuple[tuple[int, CallWhat], ...] = ((36, "alloc"), (40, "upload"))


def test_a_narrow_link_is_said_of_an_upload() -> None:
    d = switch()
    start = d.timeline.start_ns
    calls = tuple(
        Call(
            ts_ns=start + ms(at), end_ns=start + ms(at + 20), tgid=300, tid=301, library="cuda",
            layer="driver", symbol="cu", what=what, count=2, bytes=80_000_000, follow_ns=ms(20),
            last_ns=0,
        )
        for at, what in UPLOAD
    )  # fmt: skip
    narrow = Telemetry(
        ts_ns=start + ms(45), device=GPU, source="nvml", link_generation=3, link_width=4,
        link_generation_max=4, link_width_max=16,
    )  # fmt: skip
    intervals = tuple(
        replace(x, stage="transfer.h2d") if x.stage == "load.disk" else x
        for x in d.phases.intervals
    )
    case = Case(
        evidence=replace(d.evidence, calls=calls, telemetry=(narrow,)), timeline=d.timeline,
        phases=replace(d.phases, intervals=intervals, phases_ns={"transfer": ms(45)}),
        facts=d.facts, model="beta", kind="chat", outcome="ok", took_ns=ms(100),
        uncached_tokens=None, complete=True,
    )  # fmt: skip
    said = because(case, "transfer.h2d", ())
    assert "(4000 MB/s), by PCI Express 3 x4 where the device could 4 x16, after" in said


def shown(*readings: Telemetry) -> str:
    d = derive(slow(*readings))
    lines = show(answer(d) | detail(d))
    at = next(i for i, line in enumerate(lines) if line.startswith("  device"))
    rest = [line.strip() for line in lines[at + 1 :]]
    until = next(i for i, line in enumerate(rest) if not line or line.startswith("model before"))
    return " ".join([lines[at].strip(), *rest[:until]])


def test_show_has_a_line_for_each_device() -> None:
    full = throughout(
        210, limits=("power",), link_generation=1, link_width=4, link_generation_max=4,
        link_width_max=16,
    )  # fmt: skip
    assert shown(*full) == (
        "device        RTX 3060 (0000:01:00.0), in the prompt: 210 of 2100 MHz (P8), held by"
        " power, 97 % busy, 2.15 GB of its memory, PCIe 1 x4, could be 4 x16"
    )
    bare = Telemetry(ts_ns=ns(0), device="drm128", source="vgem", holders=(Holder(tgid=NEW),))
    assert shown(bare) == ("device        vgem (drm128), before the prompt: held, no figures")


def test_counters_of_the_trace() -> None:
    full = reading(
        250, 210, memory_clock_mhz=405, memory_used_bytes=3 << 30, pcie_rx_rate=7, pcie_tx_rate=5
    )
    events = load(dump([derive(slow(full, reading(500, None, busy_percent=None)))]))
    assert check(events) == []
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    told = [
        (names[e["pid"]], e["name"], e["args"], (nanoseconds(e["ts"]) or 0) - ns(0))
        for e in events
        if e["ph"] == "C" and ("device" in names[e["pid"]] or GPU in e["name"])
    ]
    device = "device RTX 3060 (0000:01:00.0)"
    own = next(name for name in names.values() if name.startswith("llama-server (runner"))
    assert sorted(told, key=str) == sorted(
        [
            (device, "clock in MHz", {"compute": 210}, ms(250)),
            (device, "clock in MHz", {"memory": 405}, ms(250)),
            (device, "memory used", {"bytes": 3 << 30}, ms(250)),
            (device, "busy percent", {"percent": 97}, ms(250)),
            (device, "PCIe bytes per second", {"to the device": 7}, ms(250)),
            (device, "PCIe bytes per second", {"from it": 5}, ms(250)),
            (own, f"memory of {GPU}", {"bytes": 2 << 30}, ms(250)),
            (own, f"memory of {GPU}", {"bytes": 2 << 30}, ms(500)),
        ],
        key=str,
    )
