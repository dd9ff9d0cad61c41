"""`python -m demo --vulkan`: a model on a device, without one: Mesa's software Vulkan driver.

Real uploads and real compilation of shaders, which the first prompt pays where the shader cache is
empty, and pays again at each start where the cache is not kept.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from demo import report
from demo.checks import Case, Check, Json, complete, other, sums
from demo.scenarios import ALPHA, BETA, Sent
from tests.workloads import llama, pagecache
from tests.workloads.ttftd import Ttftd
from tracer.render import COLUMNS
from tracer.render_units import wrap

MIB = 1 << 20
#: Two idle processors compile for half a minute; busy ones for many.
READY_S = 900.0
#: `-lv 4` prints sizes; `--no-repack` leaves what stays on the host where it is mapped.
ARGS = (
    "-c", "512", "-ngl", "99", "--device", "Vulkan0", "-fa", "off", "--no-repack", "-lv", "4",
    *llama.CALM,
)  # fmt: skip
PROMPT = "What is the capital of France? Answer in one short sentence, please."
NAMES = {
    "empty": "first prompt after a start, empty shader cache",
    "full": "the same after a restart, the cache is kept",
    "removed": "a container's restart: the cache is gone again",
    "switch": "switch to the other model, cache kept: a cold load",
}
SLOW_DRIVER = (
    "Not shown here: a driver that takes seconds to bring its card up when nobody had it open.\n"
    "That is spawn.device, advice persistence mode; `make test-vm` shows it on a stand-in driver,\n"
    "`ttft explain spawn.device` says how it is known."
)
_ICD = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")


class Asked(msgspec.Struct, frozen=True):
    """A request; `pid` of the server asked, and the size of the server's own device buffer."""

    sent: Sent
    reply: Any
    pid: int
    buffer_bytes: int


def refusal() -> str | None:
    """Why there is no software device here; None where there is."""
    found = [path for folder in _ICD for path in Path(folder).glob("lvp_icd*.json")]
    return None if found else "no software Vulkan driver (as root: apt install mesa-vulkan-drivers)"


def drive(models: Path, folder: Path, say: Callable[[str], None]) -> Iterator[Asked]:
    """All scenarios, in order; logs and the shader cache go into `folder`."""
    cache = folder / "shader-cache"
    shutil.rmtree(cache, ignore_errors=True)
    where = {"MESA_SHADER_CACHE_DIR": str(cache), "GGML_VK_VISIBLE_DEVICES": "0"}
    single = ("-m", str(models / f"{ALPHA}.gguf"))
    with patch.dict("os.environ", where), ThreadPoolExecutor(1, initializer=llama.be_prompt) as one:
        for name in ("empty", "full"):
            with serving(single, folder / f"{name}.log") as server:
                yield _ask(one, server, name, ALPHA, say)
        shutil.rmtree(cache)
        router = ("--models-dir", str(models), "--models-max", "1")
        with serving(router, folder / "router.log") as server:
            yield _ask(one, server, "removed", ALPHA, say)
            pagecache.drop(models / f"{BETA}.gguf")
            yield _ask(one, server, "switch", BETA, say)


@contextmanager
def serving(args: Sequence[str], log: Path) -> Iterator[llama.LlamaServer]:
    """A server on the device with these arguments, ready."""
    log.unlink(missing_ok=True)
    server = llama.LlamaServer([*args, *ARGS], log=log, nice=llama.CALM_NICE)
    server.start()
    try:
        server.wait_ready(READY_S)
        yield server
    finally:
        server.stop()


def _ask(
    thread: ThreadPoolExecutor,
    server: llama.LlamaServer,
    name: str,
    model: str,
    say: Callable[[str], None],
) -> Asked:
    def chat() -> llama.Reply:
        with server.client(keep_alive=False) as client:
            return client.chat(model, PROMPT, max_tokens=4)

    reply = thread.submit(chat).result()
    if reply.ttft_ms is None or reply.prompt_eval_ms is None:
        raise RuntimeError(f"{name}: the server answered {reply.status} without a token")
    say(f"{name:<8} {model:<6} {reply.ttft_ms:8.0f} ms   {NAMES[name]}")
    sent = Sent(name, model, reply.port, reply.sent_ns, reply.ttft_ms, reply.prompt_eval_ms)
    sizes = re.findall(r"Vulkan0 model buffer size = *([\d.]+) MiB", server.log.read_text())
    return Asked(sent, reply, server.pid, round(float(sizes[-1]) * MIB))


def checks(asked: Sequence[Asked], details: Sequence[Json]) -> list[Check]:
    """What must hold of each; `details`: as `ttft show --json` gives them."""
    cases = {a.sent.scenario: Case(a.sent, d) for a, d in zip(asked, details, strict=True)}
    size = {a.sent.scenario: a.buffer_bytes for a in asked}
    empty, full, removed, switch = (cases[name] for name in NAMES)
    every = list(cases.values())

    def check(name: str, of: list[Case], wrong: Callable[[Case], str | None]) -> Check:
        found = [(case.sent.scenario, wrong(case)) for case in of]
        return Check(name, len(of), [f"{scenario}: {text}" for scenario, text in found if text])

    def excess(case: Case) -> str | None:
        more = case.answer["ttft_ms"] - full.answer["ttft_ms"]
        spent = case.answer["stages_ms"].get("init.compile", 0.0)
        return None if spent >= 0.8 * more else f"{spent:.0f} of {more:.0f} ms"

    return [
        check("all is seen (complete)", every, complete),
        check("phases sum to TTFT, stages to phases, exactly", every, sums),
        check("unexplained (other) under 2 % of TTFT", every, other),
        check("cache empty or gone: compiling is the cause", [empty, removed], _compiled),
        check("it holds 80 % of what a full cache saves", [empty], excess),
        check("cache kept: no compiling is claimed", [full, switch], _kept),
        check("the switch: weights from disk, then to the device", [switch], _transferred(size)),
    ]


def _compiled(case: Case) -> str | None:
    spike = case.answer["spike"]
    found = (spike["dominant"], spike["cause"], spike["why"])
    if found != ("init", "init.compile", ["cache.missing"]):
        return str(found)
    if "shader-cache" not in spike["because"]:
        return f"the cache is not named: {spike['because']}"
    return None if "volume" in spike["advice"] else spike["advice"]


def _kept(case: Case) -> str | None:
    spent = case.answer["stages_ms"].get("init.compile")
    return None if spent is None else f"init.compile {spent:.0f} ms"


def _transferred(sizes: dict[str, int]) -> Callable[[Case], str | None]:
    def wrong(case: Case) -> str | None:
        sent, size = case.answer["evidence_detail"]["transfer"], sizes[case.sent.scenario]
        phases, disk = case.answer["phases_ms"], case.answer["evidence"]["weights_bytes_from_disk"]
        if not phases["load"] or not phases["transfer"] or not disk:
            return f"load {phases['load']} ms, transfer {phases['transfer']} ms, disk {disk}"
        if sent is None or abs(sent["bytes"] - size) > 0.01 * size:
            return f"{sent} to the device, the server says {size} bytes"
        return None

    return wrong


def run(models: Path, out: Path, say: Callable[[str], None]) -> bool:
    """The scenarios under a daemon of our own, their explanations and checks; all hold?"""
    folder = out.resolve() / "vulkan"
    (folder / "ttftd.log").unlink(missing_ok=True)
    with Ttftd(folder) as daemon:
        asked = list(drive(models.resolve(), folder, say))
        answers = daemon.explained([a.sent for a in asked], 60)
        details = [daemon.get(f"/v1/requests/{answer['id']}") for answer in answers]
    cases = [Case(a.sent, d) for a, d in zip(asked, details, strict=True)]
    say("")
    for line in (*report.phases(cases), "", *report.verdicts(cases), ""):
        say(line)
    for case in cases:
        spike = case.answer["spike"]
        if spike["is_spike"]:
            for line in wrap(f"{case.sent.scenario}: {spike['because']}", COLUMNS):
                say(line)
            say(f"  -> {spike['advice']}")
    say(f"\n{SLOW_DRIVER}")
    found = checks(asked, details)
    say("\nchecks")
    for line in report.checked(found):
        say(line)
    return not any(check.wrong for check in found)
