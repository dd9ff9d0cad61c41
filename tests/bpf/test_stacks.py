"""Stacks of a program with known functions: shares and times recovered, others left alone."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.bpf.libraries import links_of
from tests.unit.evidence_build import evidence, request
from tests.workloads.spin import Spent, Spin, compiled
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.kernel.probes import SAMPLER
from tracer.records import AnyRecord, Conn, HttpBody, HttpEnd, HttpRequest, Names, Samples
from tracer.stacks import clock
from tracer.stacks.fold import places
from tracer.stacks.mapped import MADE
from tracer.stacks.names import SYSTEM_PYTHON, Namer, ask, has_bcc, interpreters, question, record
from tracer.stacks.watch import StackWatch
from tracer.stacks.when import When

pytestmark = pytest.mark.kernel
#: Fast, so that a second says much.
HZ = 997.0
CONN = Conn(1, "127.0.0.1", 8080, "127.0.0.1", 40000)
ASKED = HttpRequest(
    ts_ns=time.monotonic_ns(), xid=1, conn=CONN, method="POST", endpoint="/v1/chat/completions"
)
OVER = HttpEnd(ts_ns=time.monotonic_ns(), xid=1, why="complete")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("spin"))


@dataclass
class Scene:
    """A kernel with nothing but the sampler, and what was found."""

    kernel: Kernel
    watch: StackWatch
    said: list[str]
    found: list[Samples] = field(default_factory=list)

    def take(self) -> list[AnyRecord]:
        self.kernel.drain()
        records = self.watch.collect(time.monotonic_ns())
        self.found += [r for r in records if isinstance(r, Samples)]
        return records

    def ask(self) -> None:
        """A request waits from now on."""
        fresh = msgspec.structs.replace(ASKED, ts_ns=time.monotonic_ns())
        self.watch.note([fresh, HttpBody(ts_ns=fresh.ts_ns, xid=fresh.xid, bytes=1)])
        self.take()

    def answer(self) -> None:
        self.take()
        self.watch.note([OVER])
        self.take()

    def sampled(self, spin: Spin) -> Spent:
        """The whole work of a program, sampled."""
        self.ask()
        spin.go()
        while not spin.done(0.1):
            self.take()
        spent = spin.spent()
        self.answer()
        return spent

    def frames(self, tgid: int) -> Counter[tuple[str, int]]:
        """How often the process was at each place."""
        counted: Counter[tuple[str, int]] = Counter()
        for s in self.found:
            if s.tgid == tgid:
                for count, module, offset, *_ in s.stacks:
                    counted[s.modules[module], offset] += count
        return counted


def scene(kernel: Kernel, hz: float | None = HZ) -> Scene:
    said: list[str] = []
    return Scene(kernel, StackWatch(kernel, When(), said.append, hz=hz), said)


OFF = ("sockets", "files", "faults", "libs", "devices", "cache")


@pytest.fixture(params=["full", "plain"])
def stage(request: pytest.FixtureRequest, built: Path) -> Iterator[Scene]:
    with Kernel.open(off=OFF, plain=request.param == "plain") as opened:
        made = scene(opened)
        yield made
        made.watch.close()


@pytest.fixture
def kernel_only(built: Path) -> Iterator[Kernel]:
    with Kernel.open(off=OFF, path=built) as opened:
        yield opened


def names(found: list[Samples], watch: StackWatch, pythons: list[tuple[str, bool]]) -> Names:
    told = msgspec.structs.replace(evidence(request()), samples=tuple(found))
    asked = question(told, watch.mappings)
    named = record(1, asked, ask(asked, pythons), 0)
    assert named is not None
    return named


def by_function(stage: Scene, tgid: int, named: Names) -> Counter[str]:
    known = {(named.modules[m], offset): named.functions[f] for m, offset, f in named.at}
    counted: Counter[str] = Counter()
    for place, count in stage.frames(tgid).items():
        counted[known.get(place, "?")] += count
    return counted


def test_shares_and_times_of_known_functions(stage: Scene, program: Path) -> None:
    with Spin(program, 2000) as spin:
        stage.kernel.watch(spin.pid)
        spent = stage.sampled(spin)
        counted = by_function(stage, spin.pid, names(stage.found, stage.watch, interpreters()))
    total = counted.total()
    in_both = counted["spin_long"] + counted["spin_short"]
    assert in_both > 0.97 * total
    assert abs(counted["spin_long"] / in_both - spent.share) < 0.04
    period_ns = stage.found[0].period_ns
    assert total * period_ns == pytest.approx(spent.long_ns + spent.short_ns, rel=0.15)
    assert stage.watch.left_out == 0


def test_slots_lie_where_the_work_was(stage: Scene, program: Path) -> None:
    with Spin(program, 500) as spin:
        stage.kernel.watch(spin.pid)
        began = time.monotonic_ns()
        stage.sampled(spin)
        ended = time.monotonic_ns()
    mine = [s for s in stage.found if s.tgid == spin.pid]
    assert mine
    assert all(s.end_ns - s.ts_ns == 100_000_000 for s in mine)
    assert min(s.end_ns for s in mine) > began
    assert max(s.ts_ns for s in mine) < ended


def test_who_is_not_watched_is_never_sampled(stage: Scene, program: Path) -> None:
    with Spin(program, 500) as mine, Spin(program, 500) as other:
        stage.kernel.watch(mine.pid)
        other.go()
        stage.sampled(mine)
        other.spent()
    assert {s.tgid for s in stage.found} == {mine.pid}


def test_children_are_sampled(stage: Scene, program: Path) -> None:
    with Spin(program, 500, "child") as spin:
        stage.kernel.watch(spin.pid)
        spent = stage.sampled(spin)
    assert spent.pid != spin.pid
    assert stage.frames(spent.pid).total() > 200


def test_nothing_ticks_while_no_request_waits(stage: Scene, program: Path) -> None:
    stage.kernel.enable_stats()

    def runs() -> int:
        (mine,) = (s for s in stage.kernel.run_stats() if s.program == SAMPLER)
        return mine.runs

    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        stage.take()
        spin.go()
        spin.spent()
        stage.take()
    assert (runs(), stage.found, stage.watch.sampling) == (0, [], False)
    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        stage.sampled(spin)
    ticked = runs()
    assert ticked > 100
    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        spin.go()
        spin.spent()
    assert runs() == ticked


def test_names_of_a_process_that_is_gone(stage: Scene, program: Path) -> None:
    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        stage.sampled(spin)
    assert not Path(f"/proc/{spin.pid}").exists()
    named = names(stage.found, stage.watch, interpreters())
    assert by_function(stage, spin.pid, named)["spin_long"] > 50


def test_names_without_bcc(stage: Scene, program: Path) -> None:
    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        stage.sampled(spin)
        named = names(stage.found, stage.watch, interpreters()[-1:])
    assert by_function(stage, spin.pid, named)["spin_long"] > 50


def test_bcc_names_what_runs(stage: Scene, program: Path) -> None:
    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        stage.sampled(spin)
        told = msgspec.structs.replace(evidence(request()), samples=tuple(stage.found))
        answer = ask(question(told, stage.watch.mappings), [(SYSTEM_PYTHON, True)])
    assert answer.by == ("bcc" if has_bcc() else "symbols")
    assert {"spin_long", "spin_short"} <= set(answer.names[0])


def test_the_namer_gives_a_record(stage: Scene, program: Path) -> None:
    given: list[Names] = []
    namer = Namer(given.append, stage.said.append)
    with Spin(program, 300) as spin:
        stage.kernel.watch(spin.pid)
        stage.sampled(spin)
        told = msgspec.structs.replace(evidence(request()), samples=tuple(stage.found))
        namer.name(told, stage.watch.mappings)
        wait_for(lambda: bool(given) or bool(stage.said), 30, "names")
    namer.close()
    assert stage.said == []
    assert given[0].id == told.id
    assert "spin_long" in given[0].functions


def test_no_more_records_than_there_is_room_for(built: Path, tmp_path: Path) -> None:
    """A program that is everywhere: what finds no room is counted."""
    source = tmp_path / "wide.c"
    body = "\n".join(f"s += {n}; s ^= s << 1;" for n in range(2000))
    source.write_text(
        "#include <stdio.h>\nvolatile unsigned long s;\nint main(void) { char l[9];"
        f"if (!fgets(l, 9, stdin)) return 1;\nfor (long n = 0; n < 8000; n++) {{ {body} }}\n"
        'puts("{\\"pid\\": 0, \\"long_ns\\": 1, \\"short_ns\\": 0}"); fflush(stdout);'
        "while (fgets(l, 9, stdin)); return 0; }\n"
    )
    subprocess.run(["cc", "-O1", "-o", tmp_path / "wide", source], check=True)
    with Kernel.open(off=OFF, path=built, sizes={"stacks": 64}) as opened:
        stage = scene(opened, hz=5000.0)
        with Spin(tmp_path / "wide", 0) as spin:
            opened.watch(spin.pid)
            stage.ask()
            spin.go()
            spin.spent()
            records = stage.take()
        assert sum(len(r.stacks) for r in records if isinstance(r, Samples)) <= 64
        assert stage.watch.left_out > 0
        stage.watch.close()


def test_code_made_while_running(stage: Scene, tmp_path: Path) -> None:
    """Has no file, and is not asked for."""
    source = tmp_path / "made.c"
    source.write_text(
        "#include <stdio.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <time.h>\n"
        "static void loop(void) { for (volatile long i = 0; i < 400000000; i++); }\n"
        "int main(void) { char l[9]; if (!fgets(l, 9, stdin)) return 1;\n"
        "char *p = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n"
        "memcpy(p, (void *)loop, 256); ((void (*)(void))p)();\n"
        'puts("{\\"pid\\": 0, \\"long_ns\\": 1, \\"short_ns\\": 0}"); fflush(stdout);\n'
        "while (fgets(l, 9, stdin)); return 0; }\n"
    )
    subprocess.run(["cc", "-O1", "-o", tmp_path / "made", source], check=True)
    with Spin(tmp_path / "made", 0) as spin:
        stage.kernel.watch(spin.pid)
        stage.sampled(spin)
    counted = stage.frames(spin.pid)
    assert counted[MADE, 0] > 0.9 * counted.total() > 30  # seconds of work, however fast
    told = msgspec.structs.replace(evidence(request()), samples=tuple(stage.found))
    assert (spin.pid, MADE, 0) in places(told)
    asked = question(told, stage.watch.mappings)
    assert all(path != MADE for process in asked for path, _ in process.files)


# --- clocks ----------------------------------------------------------------------------


def test_clocks_come_and_go(kernel_only: Kernel) -> None:
    before = links_of(os.getpid())
    made = scene(kernel_only, hz=None)
    made.ask()
    assert links_of(os.getpid()) - before == len(clock.processors())
    made.watch.close()
    assert links_of(os.getpid()) == before


def test_a_kernel_that_refuses_them(kernel_only: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cpu: int, hz: float) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(clock, "open_clock", refuse)
    made = scene(kernel_only)
    made.ask()
    made.ask()
    assert (made.watch.sampling, made.found) == (False, [])
    assert len(made.said) == 1 and "cannot sample by a clock" in made.said[0]
    (group,) = (g for g in kernel_only.groups() if g.group == "stacks")
    assert not group.attached
    assert group.off_because is not None and "cannot sample by a clock" in group.off_because


def test_a_processor_that_was_taken_offline(
    kernel_only: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_is_gone(cpu: int, hz: float) -> int:
        if cpu == 9999:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return open_clock(cpu, hz)

    open_clock = clock.open_clock
    monkeypatch.setattr(clock, "open_clock", one_is_gone)
    monkeypatch.setattr(clock, "processors", lambda: [0, 9999])
    made = scene(kernel_only)
    made.ask()
    assert (made.watch.sampling, made.said) == (True, [])
    made.watch.close()


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,7\n", [0, 1, 2, 3, 7]), ("0\n", [0]), ("", [])]
)  # fmt: skip
def test_numbers(text: str, cpus: list[int]) -> None:
    assert clock.numbers(text) == cpus


@pytest.mark.parametrize("count", [1, 2, 8, 16, 64, 512])
def test_a_large_host_is_not_sampled_more(count: int) -> None:
    assert clock.hz_of(count) * count <= clock.HZ_ALL
    assert clock.hz_of(count) == min(49, 392 / count)
