"""What a reply reports about itself, from any server's spelling of it."""

from __future__ import annotations

from typing import Any

import msgspec

from tracer.records import Says

_LIMIT = 2**53
_LIMIT_MS = 1e12  # thirty years; in nanoseconds still 64 bits
_NS = 1e-6

# llama.cpp `timings`
_TIMINGS = {
    "prompt_ms": "prompt_ms",
    "prompt_n": "prompt_n",
    "cache_n": "cache_n",
    "predicted_ms": "predicted_ms",
    "predicted_n": "predicted_n",
}
# top level of llama.cpp's /completion and of Ollama's last line
_COUNTS = {
    "tokens_evaluated": ("prompt_tokens",),
    "tokens_predicted": ("completion_tokens",),
    "prompt_eval_count": ("prompt_n", "prompt_tokens"),
    "eval_count": ("predicted_n", "completion_tokens"),
}
_DURATIONS = {
    "load_duration": "load_ms",
    "prompt_eval_duration": "prompt_ms",
    "eval_duration": "predicted_ms",
}

# The keys of a whole reply that are worth keeping; see bodies.TopLevel.
REPLY_KEYS = frozenset({"model", "usage", "timings", "error", *_COUNTS, *_DURATIONS})

Figures = dict[str, float | int]


def gather(reply: dict[str, Any], into: Figures) -> None:
    """Add what one JSON object of a reply says; later objects overrule earlier ones."""
    usage = reply.get("usage")
    if isinstance(usage, dict):
        _usage(usage, into)
    timings = reply.get("timings")
    if isinstance(timings, dict):
        for theirs, ours in _TIMINGS.items():
            _put(into, ours, timings.get(theirs))
    for name, targets in _COUNTS.items():
        if name in reply:
            for target in targets:
                _put(into, target, reply[name])
    for name, target in _DURATIONS.items():
        value = _number(reply.get(name))
        if value is not None:
            into[target] = value * _NS


def _usage(usage: dict[str, Any], into: Figures) -> None:
    _put(into, "prompt_tokens", usage.get("prompt_tokens"))
    _put(into, "completion_tokens", usage.get("completion_tokens"))
    _put(into, "completion_tokens", usage.get("output_tokens"))
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            _put(into, "cache_n", details.get("cached_tokens"))
    _put(into, "cache_n", usage.get("cache_read_input_tokens"))
    counted = _count(usage.get("input_tokens"))
    if counted is not None:
        # Anthropic's input_tokens leave out what came from or went to the cache.
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            counted += _count(usage.get(name)) or 0
        _put(into, "prompt_tokens", counted)


def says(figures: Figures) -> Says | None:
    """The figures as a record's part; None when the reply said nothing."""
    return msgspec.convert(figures, Says) if figures else None


def _put(into: Figures, name: str, value: Any) -> None:
    figure = _number(value, _LIMIT_MS) if name.endswith("_ms") else _count(value)
    if figure is not None:
        into[name] = figure


def _number(value: Any, limit: float = _LIMIT) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < limit:
        return float(value)
    return None


def _count(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LIMIT:
        return value
    return None
