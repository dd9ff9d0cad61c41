"""Streamed replies: which bytes carry a token. Rules: what counts is text, reasoning, tool calls.

Role-only deltas, empty content, comments, keep-alives, progress and loading text do not count.
"""

from __future__ import annotations

from typing import Any

import orjson

from tracer.records import TokenWhat

MAX_LINE = 1 << 20
_LOADING = ("id", "model")

_REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_TYPED_DELTAS: dict[str, TokenWhat] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning.delta": "reasoning",
    "response.function_call_arguments.delta": "tool",
    "response.custom_tool_call_input.delta": "tool",
    "response.mcp_call_arguments.delta": "tool",
    "response.code_interpreter_call_code.delta": "tool",
}
_BLOCK_DELTAS: dict[str, tuple[str, TokenWhat]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "reasoning"),
    "input_json_delta": ("partial_json", "tool"),
}
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
_TOOL_ITEMS = ("tool_use", "server_tool_use", "function_call", "custom_tool_call", "mcp_call")


class Lines:
    """Bytes to whole lines in bounded memory; a line longer than `MAX_LINE` is dropped."""

    __slots__ = ("_begun", "_dropping")

    def __init__(self) -> None:
        self._begun = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`, without their line ends."""
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines and (self._begun or self._dropping):
            lines[:1] = [] if self._dropping else [bytes(self._begun + lines[0])]
            self._begun = bytearray()
            self._dropping = False
        if tail and not self._dropping:
            self._begun += tail
            if len(self._begun) > MAX_LINE:
                self._begun = bytearray()
                self._dropping = True
        return lines

    def rest(self) -> bytes:
        """What was not ended by a line end."""
        return bytes(self._begun)

    @property
    def held(self) -> int:
        """Bytes of the line that is not ended."""
        return len(self._begun)

    def shed(self) -> None:
        """Drop the line that is not ended."""
        self._dropping = self._dropping or bool(self._begun)
        self._begun = bytearray()


class EventStream:
    """Server-sent events to the data of each; comments and other fields are dropped."""

    __slots__ = ("_data", "_lines", "_size")

    def __init__(self) -> None:
        self._lines = Lines()
        self._data: bytes | bytearray | None = None
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in these bytes."""
        events: list[bytes] = []
        for line in self._lines.feed(data):
            self._line(line, events)
        return events

    def rest(self) -> list[bytes]:
        """The data of an event that its stream did not end."""
        events: list[bytes] = []
        self._line(self._lines.rest(), events)
        self._line(b"", events)
        return events

    @property
    def held(self) -> int:
        """Bytes of the event that is not ended."""
        return self._lines.held + len(self._data or b"")

    def shed(self) -> None:
        """Drop the event that is not ended."""
        if self.held:
            self._lines.shed()
            self._data = None
            self._size = MAX_LINE  # what follows of it is no event either

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._size += len(line)
            if self._size > MAX_LINE:
                return
            if self._data is None:
                self._data = line[5:]
            else:
                # One piece: as a list, short lines weigh ten times what they are.
                if isinstance(self._data, bytes):
                    self._data = bytearray(self._data)
                self._data += b"\n"
                self._data += line[5:]
        elif line.startswith(b"error:"):  # older llama-server: a field of its own
            events.append(b'{"error":%b}' % line[6:])
        elif not line or line == b"\r":
            if self._data is not None:
                events.append(bytes(self._data))
                self._data = None
            self._size = 0


class JsonLines:
    """Newline-delimited JSON: a line is an event."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = Lines()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in these bytes."""
        return self._lines.feed(data)

    def rest(self) -> list[bytes]:
        """The last line, if it had no end."""
        return [self._lines.rest()]

    @property
    def held(self) -> int:
        """Bytes of the line that is not ended."""
        return self._lines.held

    def shed(self) -> None:
        """Drop the line that is not ended."""
        self._lines.shed()


def parse(event: bytes) -> dict[str, Any] | None:
    """An event's JSON object; None for `[DONE]`, text and anything else."""
    try:
        value = orjson.loads(event)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def says_end(event: dict[str, Any]) -> bool:
    """Whether an event is the last of its stream, of any of the known servers."""
    return (
        event.get("done") is True or event.get("stop") is True or event.get("type") in _LAST_EVENTS
    )


def token(event: dict[str, Any]) -> tuple[TokenWhat | None, bool]:
    """What an event carries, and whether answer text is in it."""
    choices = event.get("choices")
    if isinstance(choices, list):
        return _choices(event, choices)
    kind = event.get("type")
    if isinstance(kind, str):
        return _typed(event, kind)
    message = event.get("message")
    if isinstance(message, dict):
        return _delta(message)
    return _flat(event)


def _flat(event: dict[str, Any]) -> tuple[TokenWhat | None, bool]:
    """llama.cpp's /completion, Ollama's /api/generate and kin: text at the top level."""
    for key in ("content", "response", "token", "text"):
        value = event.get(key)
        if isinstance(value, dict):
            value = value.get("text")
        if isinstance(value, str) and value:
            return "text", True
    thinking = event.get("thinking")
    return ("reasoning" if isinstance(thinking, str) and thinking else None), False


def _choices(event: dict[str, Any], choices: list[Any]) -> tuple[TokenWhat | None, bool]:
    what: TokenWhat | None = None
    answer = False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if isinstance(delta, dict):
            found, text = _delta(delta)
        else:
            value = choice.get("text")
            text = isinstance(value, str) and value != ""
            found = "text" if text else None
        what = what or found
        answer = answer or text
    # A front that shows its loading as reasoning has no completion to name yet.
    if what == "reasoning" and not answer and not any(event.get(key) for key in _LOADING):
        what = None
    return what, answer


def _delta(delta: dict[str, Any]) -> tuple[TokenWhat | None, bool]:
    content = delta.get("content")
    text = isinstance(content, str | list) and len(content) > 0
    for key in _REASONING_KEYS:
        value = delta.get(key)
        if isinstance(value, str) and value:
            return "reasoning", text
    if text:
        return "text", True
    refusal = delta.get("refusal")
    if isinstance(refusal, str) and refusal:
        return "text", True
    if delta.get("tool_calls") or delta.get("function_call"):
        return "tool", False
    return ("data" if delta.get("audio") else None), False


def _typed(event: dict[str, Any], kind: str) -> tuple[TokenWhat | None, bool]:
    """OpenAI's responses and Anthropic's messages name their events."""
    what: TokenWhat | None = None
    if kind == "content_block_delta":
        delta = event.get("delta")
        if isinstance(delta, dict):
            named = delta.get("type")
            # Never as text: that of a deep nest is more than Python makes.
            field, block = _BLOCK_DELTAS.get(named if isinstance(named, str) else "", ("", None))
            what = block if delta.get(field) else None
    elif kind in _TYPED_DELTAS:
        what = _TYPED_DELTAS[kind] if event.get("delta") else None
    elif kind in ("content_block_start", "response.output_item.added"):
        item = event.get("content_block") or event.get("item")
        if isinstance(item, dict) and item.get("type") in _TOOL_ITEMS:
            what = "tool"
    return what, what == "text"
