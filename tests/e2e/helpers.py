"""What holds for every request, whatever the server and the client did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from demo import checks
from demo.scenarios import Sent
from tests.workloads.llama import Reply
from tests.workloads.ttftd import Json


def assert_sound(
    answer: Json, reply: Reply, body: bytes | None = None, *, complete: bool = True
) -> None:
    """Sums, the client's own TTFT, the server's own prompt time, sizes and counts.

    The prompt time has more room here than the demo gives it: headers that mark its start
    leave by another thread than the one at work, and CI shares its cores.
    """
    assert reply.ttft_ms is not None
    assert reply.prompt_eval_ms is not None
    sent = Sent("-", "-", reply.port, reply.sent_ns, reply.ttft_ms, reply.prompt_eval_ms)
    case = checks.Case(sent, answer)
    tests: list[Callable[[checks.Case], str | None]] = [checks.sums, checks.other, checks.client]
    if complete:
        tests.append(checks.complete)
    if answer["stream"] is not False:
        tests.append(partial(checks.prompt, within_ms=20, within=0.1))
    assert [wrong for test in tests if (wrong := test(case)) is not None] == [], answer
    assert answer["outcome"] == "ok"
    assert answer["status"] == 200
    if body is not None:
        assert answer["prompt_bytes"] == len(body)
