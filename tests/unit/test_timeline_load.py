"""Every way weights come in, as the tiling shows it."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.unit.evidence_build import (
    ALPHA,
    BETA,
    SIZE,
    hop,
    insert,
    opened,
    request,
    span,
)
from tests.unit.scenarios import (
    PAGES,
    cold_router,
    metadata,
    router,
    router_opens,
    tiling,
    warm_router,
)


def test_half_of_the_file_in_the_page_cache() -> None:
    """Disk only where pages came in; a pause between insertions is the disk at work."""
    e = cold_router(inserts=(insert(3000, 4000, PAGES // 4), insert(4100, 5882, PAGES // 4)))
    assert [x for x in tiling(e) if x[0].startswith("load.")] == [
        ("load.meta", 547, 868),
        ("load.cache", 868, 3000),
        ("load.disk", 3000, 5882),
    ]


def test_a_slow_disk_works_long_on_what_it_was_sent() -> None:
    """16 MiB at a time at 20 MB/s: pages go in at once, then nothing for 800 ms."""
    batches = tuple(insert(868 + 840 * i, 868.1 + 840 * i, 4096) for i in range(6))
    e = cold_router(inserts=batches)
    assert ("load.disk", 868, 5882) in tiling(e)


def test_weights_on_a_network_mount() -> None:
    remote = msgspec.structs.replace(BETA, fs="nfs4", device="nas:/m")
    e = cold_router(files=(ALPHA, remote))
    assert ("load.network", 868, 5882) in tiling(e)


def test_weights_read_into_memory() -> None:
    """`none`: reads with copying between them; all of it is load, disk where pages came in."""
    reads = (
        metadata(300.5, 500, 3),
        span(600, 700, "read", SIZE // 2, token=4, count=200),
        span(760, 860, "read", SIZE - SIZE // 2, token=4, count=200),
    )
    e = router(spans=reads, inserts=(insert(600, 700, PAGES // 2),))
    assert [x for x in tiling(e) if x[0].partition(".")[0] in ("load", "init")] == [
        ("load.meta", 547, 600),
        ("load.disk", 600, 700),
        ("load.rest", 700, 760),
        ("load.cache", 760, 860),
        ("init.rest", 860, 1030),
    ]


def test_weights_read_past_the_page_cache() -> None:
    """`dio`: every read is the disk's."""
    reads = (metadata(300.5, 500, 3), span(600, 860, "read_direct", SIZE, token=4, count=400))
    assert ("load.disk", 600, 860) in tiling(router(spans=reads))


def test_parsing_the_header_through_the_bulk_open_is_no_bulk() -> None:
    """Hundreds of 4 KiB reads, megabytes in all, then the tensors."""
    reads = (
        metadata(300.5, 500, 3),
        metadata(550, 700, 4),
        span(710, 860, "read", SIZE, token=4, count=240),
    )
    assert ("load.meta", 547, 710) in tiling(router(spans=reads))


def test_a_start_that_has_only_parsed_headers_has_not_begun_to_load() -> None:
    gone = request(read=1.3, end=240, status=None, event_stream=False, why="client_gone")
    e = router(hop=None, spans=(metadata(99.5, 235, 1),), req=gone)
    assert tiling(e)[-2:] == [("spawn.exec", 67, 99), ("spawn.fit", 99, 240)]


def test_locked_weights_come_in_without_a_call() -> None:
    """`mlock`: after the mapping, pages come in that no watched call asked for."""
    spans = (metadata(300.5, 500, 3), span(600, 601, "mmap", SIZE, token=4))
    e = router(spans=spans, inserts=(insert(601, 860, PAGES),))
    assert [x for x in tiling(e) if x[0].startswith(("load", "init"))] == [
        ("load.meta", 547, 600),
        ("load.cache", 600, 601),
        ("load.disk", 601, 860),
        ("init.rest", 860, 1030),
    ]


def test_faults_that_wait_for_pages_on_their_way() -> None:
    """No major ones: read-ahead had sent for these pages already."""
    waits = span(100, 160, "fault_minor", 2 * 4096, count=2, busy=58)
    quick = span(200, 300, "fault_minor", 90 * 4096, count=90, busy=0.3)
    begun = hop(arrival=1, read=1.1, body=1, head=3, first_token=400, end=500)
    base: dict[str, Any] = {
        "hop": begun,
        "req": request(read=0.2, head=3.2, first_token=400, end=501),
    }
    e = warm_router(spans=(waits, quick), inserts=(insert(50, 51, 32),), **base)
    loads = [x for x in tiling(e) if x[0].startswith("load")]
    came, *waited = loads
    assert came == ("load.disk", 50, 51)
    assert waited == [("load.disk", 102, 160), ("load.cache", 299.7, 300)]
    e = warm_router(spans=(waits,), **base)
    assert ("load.cache", 102, 160) in tiling(e), "nothing came in"


def test_several_weight_files_each_load_in_their_own_time() -> None:
    projector = ALPHA.__class__(
        ts_ns=0, dev=1, ino=12, size=80 << 20, path="/m/mmproj.gguf", fmt="gguf"
    )
    e = router(
        files=(BETA, projector),
        opens=(*router_opens(), opened(900, 5, projector)),
        spans=(
            metadata(99.5, 235, 1),
            span(868, 882, "mmap", SIZE, token=4, populate=True),
            span(905, 950, "mmap", 80 << 20, token=5, populate=True, file=projector),
        ),
    )
    assert [x for x in tiling(e) if x[0].startswith(("load", "init"))] == [
        ("load.meta", 547, 868),
        ("load.cache", 868, 882),
        ("init.rest", 882, 900),
        ("load.meta", 900, 905),
        ("load.cache", 905, 950),
        ("init.rest", 950, 1030),
    ]
