"""A real Prometheus (Debian's package) that scrapes one page every second."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.collectors.running import Running
from tests.workloads.llama import free_port

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ttft
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Prometheus(Running):
    """Asked over its own HTTP interface."""

    def __init__(self, folder: Path, scraped: int) -> None:
        """`scraped`: the port of the page."""
        super().__init__("prometheus", folder)
        self._port = free_port()
        self._scraped = scraped

    def command(self) -> Sequence[str | Path]:
        config = self.folder / "prometheus.yml"
        config.write_text(CONFIG.format(port=self._scraped))
        return [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]  # fmt: skip

    def ready(self) -> bool:
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
