"""Requests that a killed daemon left open: nobody will tell how they ended."""

from __future__ import annotations

from msgspec.structs import replace

from tracer.derive import derive
from tracer.derived import Derived
from tracer.evidence import Evidence


def settle(evidence: Evidence) -> Derived:
    """The request as one whose end was not seen, over at the last that was."""
    request = evidence.request
    known = (
        request.arrival_ns,
        request.body_ns,
        request.read_ns,
        request.head_ns,
        request.first_token_ns,
        request.second_token_ns,
        request.first_answer_ns,
    )
    end_ns = max(ts_ns for ts_ns in known if ts_ns is not None)
    return derive(replace(evidence, request=replace(request, end_ns=end_ns, why="gap")))
