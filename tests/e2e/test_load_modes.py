"""However the server brings its weights in, phases and bytes come out right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.e2e.helpers import assert_sound
from tests.workloads import llama, pagecache
from tests.workloads.throttle import Throttle
from tests.workloads.ttftd import Ttftd

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
DISK_BYTES_PER_S = 60_000_000
# A tied embedding is read twice by this server wherever it reads instead of mapping.
EMBEDDING_BYTES = 178_262_016
HEADER_BYTES = 7_000_000  # read by each of two passes before the load


@pytest.mark.parametrize("mode", ["mmap", "none", "dio", "mlock", "mmap+mlock"])
def test_cold_load(mode: str, daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path) -> None:
    file = weights / "alpha.gguf"
    size = file.stat().st_size
    pages = -(-size // 4096) * 4096
    options = ("-c", "2048", "--load-mode", mode)
    with (
        Throttle(file, "ttft-test") as throttle,
        llama.router(weights, 1, *options, log=tmp_path / "server.log", calm=True) as server,
        server.client(keep_alive=False) as client,
    ):
        throttle.add(server.pid)
        pagecache.drop(file)
        throttle.limit(DISK_BYTES_PER_S)
        before = pagecache.refaulted_bytes()
        cold = ask(lambda: client.chat("alpha", "Say a word."))
        again = pagecache.refaulted_bytes() - before
        throttle.limit(None)
        warm = ask(lambda: client.chat("alpha", "Say something else."))
        first, second = daemon.explained([cold, warm])
    assert_sound(first, cold)
    assert_sound(second, warm)

    read = first["evidence"]["weights_bytes_from_disk"]
    if mode == "dio":
        assert size <= read <= size + EMBEDDING_BYTES + 2 * HEADER_BYTES + again
    else:
        assert pages <= read <= pages + again
    assert 0.99 * size <= first["evidence"]["weights_bytes"] <= pages
    # What the throttle alone takes for the bytes is in load (and a little in spawn.fit).
    assert first["phases_ms"]["load"] >= 0.9 * (size - 2 * HEADER_BYTES) / DISK_BYTES_PER_S * 1e3
    assert first["spike"]["cause"] == "load.disk"
    assert "load.refault" not in first["spike"]["why"]

    assert second["evidence"]["weights_bytes_from_disk"] == 0
    assert [second["phases_ms"][phase] for phase in ("evict", "spawn", "init")] == [0] * 3
    # Pages of the mapping that this prompt is the first to touch.
    assert second["phases_ms"]["load"] < 0.01 * second["ttft_ms"]
