"""A real OpenTelemetry Collector, built from Debian's own sources of it; no package has it built.

Made once, in some minutes, in a tree that holds Go and all that the collector is made from.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.collectors.running import Running
from tests.vm import cache
from tests.vm.images import extracted
from tests.workloads.llama import free_port

SUITE = "sid"
MAIN = Path(__file__).with_suffix(".go")
_PACKAGES = ("golang-go", "golang-opentelemetry-collector-dev")


def binary() -> Path:
    """The program; BuildError where it cannot be made."""
    recipe = [SUITE, _PACKAGES, MAIN.read_text(), inspect.getsource(_build)]
    return cache.built(f"otelcol-{cache.digest(recipe)}", _build) / "otelcol"


def _build(folder: Path) -> None:
    tree = folder / "tree"
    extracted(tree, SUITE, _PACKAGES)
    go = next((tree / "usr/lib").glob("go-*"))
    shares = tree / "usr/share"
    source = shares / "gocode/src/otelcol"
    source.mkdir()
    shutil.copy(MAIN, source / "main.go")
    subprocess.run(
        [go / "bin/go", "build", "-trimpath", "-o", folder / "otelcol", "."],
        cwd=source,
        check=True,
        # As Debian builds its own: what lies in the tree, no modules from elsewhere.
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GOROOT": str(go),
            "GOPATH": str(shares / "gocode"),
            "GOCACHE": str(folder / "cache"),
            "GO111MODULE": "off",
            "GOTOOLCHAIN": "local",
            "GOTELEMETRY": "off",
            "CGO_ENABLED": "0",
        },
    )
    for used in ("tree", "cache", ".config"):
        shutil.rmtree(folder / used, ignore_errors=True)


class Otelcol(Running):
    """Takes OTLP at `port` and passes it on, as JSON, to another port."""

    def __init__(self, folder: Path, to_port: int) -> None:
        super().__init__("otelcol", folder)
        self.port = free_port()
        self._config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{self.port}"}}}},
            "exporters": {
                "otlphttp": {
                    "endpoint": f"http://127.0.0.1:{to_port}",
                    "encoding": "json",
                    "compression": "none",
                }
            },
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
            },
        }

    def command(self) -> Sequence[str | Path]:
        config = self.folder / "otelcol.json"  # JSON is YAML
        config.write_text(json.dumps(self._config))
        return [binary(), "--config", config]

    def ready(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0
