"""What the daemon does beside its work: none of it ends unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.answer_cases import spike
from tracer import backend, chores
from tracer.backend import Daemon
from tracer.chores import Chores, Tasks
from tracer.config import SERVERS_MAX, Config, HistorySection, ServerEntry, SpikeSection, parse
from tracer.errors import KernelError
from tracer.host.discovery import Discovery
from tracer.store import Store


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What systemd is told."""
    found: list[str] = []
    monkeypatch.setattr(chores, "notify", lambda *state: found.append("\n".join(state)))
    monkeypatch.setattr(backend, "notify", lambda *state: found.append("\n".join(state)))
    monkeypatch.setattr(backend, "reloading", lambda: found.append("RELOADING=1"))
    return found


def test_any_age_is_trimmed_by_and_systemd_told(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AFTER_S", "IDLE_S", "TRIM_EVERY_S"):
        monkeypatch.setattr(chores, name, 0.001)
    store = Store(tmp_path / "history.db", max_age_days=1e9)
    store.put([spike(1)])

    async def some() -> None:
        work = Chores(store, lambda: 1 << 61, lambda: "STATUS=well")
        task = asyncio.create_task(work.run())
        while len(told) < 3:
            await asyncio.sleep(0.001)
        assert not task.done()
        task.cancel()

    asyncio.run(asyncio.wait_for(some(), 10))
    assert set(told) == {"STATUS=well"}
    assert store.find() == [1]


def test_a_task_that_fails_ends_the_daemon_and_is_told() -> None:
    async def fails() -> None:
        raise OverflowError("too much")

    async def some() -> None:
        stop = asyncio.Event()
        tasks = Tasks(stop.set)
        tasks.add(asyncio.sleep(1000))
        tasks.add(fails())
        await stop.wait()
        tasks.cancel()
        with pytest.raises(OverflowError):
            tasks.check()

    asyncio.run(asyncio.wait_for(some(), 10))


class Engine:
    """Does at once what is asked of its thread."""

    def put(self, work: Callable[[], object]) -> Future[None]:
        done: Future[None] = Future()
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done


class Kernel:
    """Takes no more servers than `room`."""

    room = 2

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def set_server_ports(self, ports: list[int]) -> None:
        if len(ports) > self.room:
            raise KernelError("cannot write a map: it is full")


def daemon(store: Store, config: Config, reread: Callable[[], Config]) -> Any:
    made = object.__new__(Daemon)
    kernel: Any = Kernel()
    found: Any = Discovery(kernel, backend.rules(config))
    found._sockets = found._known.fronts = lambda *_: []
    vars(made).update(
        _config=config, _reread=reread, _engine=Engine(), store=store, _discovery=found,
        _overview=SimpleNamespace(servers=list),
    )  # fmt: skip
    return made


def servers(count: int) -> tuple[ServerEntry, ...]:
    return tuple(ServerEntry(name=f"s{n}", port=n) for n in range(1, count + 1))


def test_a_configuration_read_again(tmp_path: Path, told: list[str]) -> None:
    fresh = Config(
        server=servers(2), spike=SpikeSection(min_ms=7), history=HistorySection(max_age_days=1e9)
    )
    made = daemon(Store(tmp_path / "history.db"), Config(server=servers(1)), lambda: fresh)
    asyncio.run(made._reload())
    assert told == ["RELOADING=1", "READY=1\nSTATUS=watching 0 servers"]
    assert made._config == fresh
    assert len(made._discovery._known.rules) == 2


@pytest.mark.parametrize("count", [3, SERVERS_MAX + 1])
def test_a_refused_configuration_changes_nothing(
    tmp_path: Path, told: list[str], count: int
) -> None:
    """By the kernel, or as it is read."""
    before = Config(server=servers(1))
    text = "[spike]\nmin_ms = 7\n" + "".join(
        f"[[server]]\nname = 's{n}'\nport = {n}\n" for n in range(1, count + 1)
    )
    made = daemon(Store(tmp_path / "h.db"), before, lambda: parse(text.encode(), "c.toml"))
    rules = made._discovery._known.rules
    asyncio.run(made._reload())
    assert told == ["RELOADING=1", "READY=1\nSTATUS=configuration not taken; see the log"]
    assert made._config == before
    assert made._discovery._known.rules == rules


def test_systemd_does_not_wait_for_a_reload_that_broke(tmp_path: Path, told: list[str]) -> None:
    def breaks() -> Config:
        raise OverflowError("too much")

    made = daemon(Store(tmp_path / "history.db"), Config(), breaks)
    with pytest.raises(OverflowError):
        asyncio.run(made._reload())
    assert told[-1].startswith("READY=1\n")
