"""Our figures against the client's and the server's own."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.common import Plan, Row, router, say, ttft_ms, watching
from tests.workloads import pagecache
from tests.workloads.llama import Reply
from tests.workloads.ttftd import Json

Pair = tuple[Json, Reply]


def run(plan: Plan) -> Iterator[Row]:
    """Warm requests, switches with and without the weights in the page cache."""
    with router(plan) as asker, watching(plan, asker.server.port) as daemon:
        say("our figures against the client's and the server's")
        replies = []
        for number in range(plan.times(8, 40)):
            model = ("alpha", "beta")[number % 2]
            if number % 4 < 2:
                pagecache.drop(plan.models / f"{model}.gguf")
            replies += [asker.warm(model, 4) for _ in range(4)]
        pairs = list(zip(daemon.explained(replies), replies, strict=True))
        lost = daemon.get("/v1/status")["lost"]
    yield from (_client(pairs), _prompt(pairs), _other(pairs), _complete(pairs, lost))


def _client(pairs: Sequence[Pair]) -> Row:
    off = [abs((item["ttft_ms"] or 0.0) - ttft_ms(reply)) for item, reply in pairs]
    allowed = [max(2.0, 0.01 * ttft_ms(reply)) for _, reply in pairs]
    return _within("our TTFT against the client's", off, allowed, "2 ms or 1 %")


def _prompt(pairs: Sequence[Pair]) -> Row:
    """Stages after prompt start against the server's `prompt_ms`."""
    off, allowed = [], []
    for item, reply in pairs:
        server = reply.prompt_eval_ms
        if server is None:
            continue
        stages = item["stages_ms"]
        ours = stages.get("prefill.prompt", 0.0) + stages.get("prefill.shared", 0.0)
        off.append(abs(ours - server))
        allowed.append(max(5.0, 0.03 * server))
    return _within("our prompt time against the server's", off, allowed, "5 ms or 3 %")


def _within(what: str, off: Sequence[float], allowed: Sequence[float], budget: str) -> Row:
    beyond = sum(one > most for one, most in zip(off, allowed, strict=True))
    return Row(
        what,
        f"median {statistics.median(off):.2f}, most {max(off):.2f} ms; {beyond} of {len(off)} off",
        budget,
        beyond == 0,
        {
            "median_ms": statistics.median(off),
            "most_ms": max(off),
            "beyond": beyond,
            "requests": len(off),
        },
    )


def _other(pairs: Sequence[Pair]) -> Row:
    shares = [100 * item["phases_ms"]["other"] / item["ttft_ms"] for item, _ in pairs]
    return Row(
        "unexplained (other), most of any request",
        f"{max(shares):.2f} % of TTFT",
        "2 %",
        max(shares) < 2.0,
        {"most_percent": max(shares), "median_percent": statistics.median(shares)},
    )


def _complete(pairs: Sequence[Pair], lost: dict[str, int]) -> Row:
    reasons = sorted({str(i["incomplete_because"]) for i, _ in pairs if not i["complete"]})
    whole = sum(item["complete"] for item, _ in pairs)
    text = f"{whole} of {len(pairs)}" + (f" ({'; '.join(reasons)})" if reasons else "")
    return Row(
        "requests seen completely", text, data={"complete": whole, "reasons": reasons, "lost": lost}
    )
