"""What ran, as answers, `ttft show`, traces and recordings tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import orjson

from tests.unit.build import Story
from tests.unit.scenarios import cold_router
from tests.unit.test_stacks_fold import LIBC, LLVM, NAMES, samples
from tests.unit.trace_rules import check, load
from tracer.answers import answer, detail, dumps
from tracer.derive import derive
from tracer.derived import Derived
from tracer.export.chrome import dump
from tracer.pipeline import SAMPLED_KEPT, Pipeline
from tracer.recording import header, line, replay
from tracer.records import AnyRecord, Names, Samples
from tracer.render_show import show, widest

#: The scenario's fit lies there.
FIT = 100


def slow(names: Names | None = NAMES, **more: str) -> Derived:
    found = [
        samples(FIT, (30, 0, 16, 0, 99), (10, 1, 8)),
        samples(FIT + 100, (20, 0, 16), (2, 1, 77)),
    ]
    if more:
        found = [msgspec.structs.replace(s, modules=(more["module"], LIBC)) for s in found]
    return derive(cold_router(samples=tuple(found), names=names))


def as_json(item: Derived) -> dict[str, object]:
    made: dict[str, object] = orjson.loads(dumps({**answer(item), **detail(item)}))
    return made


def stacks(item: Derived) -> Any:
    return detail(item)["evidence_detail"]["stacks"]


def test_answers_tell_each_stage() -> None:
    assert stacks(slow()) == [
        {
            "stage": "spawn.fit",
            "samples": 62,
            "processors": 2.77,
            "modules": [
                {"module": LLVM, "samples": 50, "share": 0.8065},
                {"module": LIBC, "samples": 12, "share": 0.1935},
            ],
            "functions": [
                {
                    "function": "llvm::combine", "module": LLVM, "samples": 50, "share": 0.8065,
                    "callers": ["llvm::visit"],
                },
                {
                    "function": "malloc", "module": LIBC, "samples": 10, "share": 0.1613,
                    "callers": [],
                },
                {
                    "function": None, "module": LIBC, "samples": 2, "share": 0.0323,
                    "callers": [],
                },
            ],
        }
    ]  # fmt: skip


def test_nothing_sampled_is_not_nothing_found() -> None:
    assert stacks(derive(cold_router())) is None
    assert stacks(derive(cold_router(samples=(samples(FIT, (1, 0, 16)),)))) == []


def test_show_has_the_functions_of_long_stages() -> None:
    late = msgspec.structs.replace(slow().evidence, samples=(samples(870, (40, 0, 16)),))
    assert [text for text in show(as_json(derive(late))) if "combine" in text]
    # The fit takes a fourteenth of this: not long.
    assert "What ran" not in show(as_json(slow()))
    told = as_json(slow())
    told["stages_ms"] = {"spawn.fit": 2000.0}
    lines = show(told)
    at = lines.index("What ran")
    assert lines[at : at + 6] == [
        "What ran",
        "  spawn.fit: 2.8 processors busy, 62 samples",
        "    81 %  all of libLLVM-15.so.1",
        "    81 %  llvm::combine                                 libLLVM-15.so.1",
        "    16 %  malloc                                        libc.so.6",
        "     3 %  (without a name)                              libc.so.6",
    ]


def test_hostile_names_do_no_harm() -> None:
    module = "/tmp/\x1b[2J\n" + "x" * 400
    bad = msgspec.structs.replace(
        NAMES, modules=(module, LIBC), functions=("\x1b]0;evil\x07" * 40, "\u202emalloc", "y")
    )
    item = slow(bad, module=module)
    told = as_json(item)
    told["stages_ms"] = {"spawn.fit": 2000.0}
    lines = show(told)
    assert "What ran" in lines
    assert widest(lines) <= 80
    assert all(text.isprintable() for text in lines)
    assert check(load(dump([item]))) == []


def test_traces_carry_them_once() -> None:
    events = load(dump([slow()]))
    assert check(events) == []
    told = [e for e in events if "functions" in e.get("args", {})]
    assert [(e["name"], e["ph"], e["args"]["samples"]) for e in told] == [("spawn.fit", "X", 62)]
    shares = [(f["function"], float(f["share"])) for f in told[0]["args"]["functions"]]
    assert shares == [("llvm::combine", 0.8065), ("malloc", 0.1613), (None, 0.0323)]


# --- names that come late -----------------------------------------------------------------


def story(count: int = 1) -> list[AnyRecord]:
    made = Story(role="single", model="alpha")
    for n in range(count):
        at = 1000 * n
        made.request(
            at + 100, 50001 + n, model="alpha", head=at + 700, token=at + 800, end=at + 900
        )
        made.add(
            Samples(
                ts_ns=(at + 300) * 1_000_000, end_ns=(at + 400) * 1_000_000, tgid=made.front,
                period_ns=20_000_000, modules=(LLVM,), stacks=((9, 0, 16),),
            )
        )  # fmt: skip
    return made.records()


def names_for(id_: int) -> Names:
    return Names(ts_ns=2_000_000_000, id=id_, modules=(LLVM,), functions=("f",), at=((0, 16, 0),))


def test_names_tell_a_request_once_more() -> None:
    pipeline = Pipeline()
    *_, last = [d for r in story() for d in pipeline.feed(r)]
    assert last.over
    assert [s["functions"][0]["function"] for s in stacks(last)] == [None]
    (named,) = pipeline.feed(names_for(last.evidence.id))
    assert [s["functions"][0]["function"] for s in stacks(named)] == ["f"]
    assert answer(named) == answer(last)
    assert pipeline.feed(names_for(last.evidence.id)) == []


def test_names_of_what_is_unknown_are_nothing() -> None:
    pipeline = Pipeline()
    for record in story(SAMPLED_KEPT + 2):
        pipeline.feed(record)
    assert pipeline.feed(names_for(99)) == []
    assert pipeline.feed(names_for(1)) == []
    assert pipeline.feed(names_for(SAMPLED_KEPT)) != []


def test_recordings_carry_both(tmp_path: Path) -> None:
    told = story()
    path = tmp_path / "r.ndjson"
    path.write_bytes(header() + b"".join(map(line, [*told, names_for(1)])))
    (found,) = replay(path)
    assert [s["functions"][0]["function"] for s in stacks(found)] == ["f"]


def test_a_pipeline_from_a_snapshot_knows_the_samples() -> None:
    records = story()
    half = len(records) // 2
    first, second = Pipeline(), Pipeline()
    for record in records[:half]:
        first.feed(record)
    for record in first.snapshot():
        second.feed(record)
    rest = [d for r in records[half:] for d in first.feed(r)]
    assert [d for r in records[half:] for d in second.feed(r)] == rest
    assert any(d.evidence.samples for d in rest)
