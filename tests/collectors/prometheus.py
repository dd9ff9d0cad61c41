"""A real Prometheus (Debian's package) that scrapes one page every second."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.workloads.llama import free_port
from tests.workloads.waiting import wait_for

START_S = 60.0
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ttft
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Prometheus:
    """Running in `with`; asked over its own HTTP interface."""

    def __init__(self, folder: Path, scraped: int) -> None:
        """`scraped`: the port of the page."""
        self._folder = folder
        self._port = free_port()
        self._scraped = scraped
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self._folder / "prometheus.yml").write_text(CONFIG.format(port=self._scraped))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={self._folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={self._folder / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{self._port}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for(self._answers, START_S, "prometheus to answer", 0.2)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def _answers(self) -> bool:
        try:
            self.get("query", query="1")
        except OSError:
            return False
        return True

    def get(self, what: str, **query: str) -> Any:
        """The data of an answer."""
        text = urllib.parse.urlencode(query)
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{text}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that the expression gives now."""
        found = self.get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def value(self, expression: str) -> float | None:
        """Of the only series there is."""
        found = self.query(expression)
        return found[0][1] if len(found) == 1 else None
