"""What `ttft doctor` tells of accelerators whose driver calls are seen; no device is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracer.devices.nodes import Nodes, find
from tracer.devices.table import EXTRA, table
from tracer.kernel.features import Fact

_MAPPED = "launches and copies that are submitted by a store to mapped memory are no such calls"


def facts(patterns: Sequence[str] = (), root: Path = Path("/")) -> list[Fact]:
    """One line, none on a host without. `patterns`: further nodes, of the configuration."""
    nodes = find(table(), patterns, root)
    if not nodes.nodes:
        return []
    return [Fact("driver calls", f"of {', '.join(_names(nodes))}; {_MAPPED}")]


def _names(nodes: Nodes) -> list[str]:
    """Each driver once, and nodes that only the configuration knows."""
    names = [n.name if n.driver.name == EXTRA else n.driver.name for n in nodes.nodes.values()]
    return list(dict.fromkeys(names))
