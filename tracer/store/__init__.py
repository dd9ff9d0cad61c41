"""The history of requests, in SQLite."""

from tracer.store.history import Store
from tracer.store.rows import evidence_from

__all__ = ["Store", "evidence_from"]
