"""The known endpoints of inference servers, and what kind of work each one is."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["chat", "completion", "infill", "embedding", "rerank", "audio", "image", "control"]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A known path. `control`: no inference, so never a request of anybody's.

    `streams`: whether a body without the key `stream` asks for a stream, None where the
    endpoint never streams.
    """

    path: str
    kind: Kind
    streams: bool | None = None

    @property
    def inference(self) -> bool:
        return self.kind != "control"


_STREAMING: dict[Kind, tuple[str, ...]] = {
    "chat": (
        "/v1/chat/completions",
        "/chat/completions",
        "/api/v0/chat/completions",
        "/api/v1/chat/completions",
        "/v1/responses",
        "/responses",
        "/api/v1/responses",
        "/v1/messages",
        "/messages",
    ),
    "completion": (
        "/v1/completions",
        "/completions",
        "/completion",
        "/api/v0/completions",
        "/api/v1/completions",
        "/generate",
        "/api/v1/generate",
    ),
    "infill": ("/infill",),
}

_STREAM_BY_DEFAULT: dict[Kind, tuple[str, ...]] = {
    "chat": ("/api/chat",),
    "completion": ("/api/generate", "/generate_stream", "/api/extra/generate/stream"),
}

_NEVER_STREAMING: dict[Kind, tuple[str, ...]] = {
    "embedding": (
        "/v1/embeddings",
        "/embeddings",
        "/embedding",
        "/api/embed",
        "/api/embeddings",
        "/api/v0/embeddings",
        "/api/v1/embeddings",
    ),
    "rerank": ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank", "/score"),
    "audio": ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
    "image": ("/v1/images/generations", "/v1/images/edits"),
    "control": (
        "/health",
        "/v1/health",
        "/healthz",
        "/readyz",
        "/ping",
        "/version",
        "/metrics",
        "/models",
        "/v1/models",
        "/api/v0/models",
        "/api/v1/models",
        "/models/load",
        "/models/unload",
        "/models/available",
        "/props",
        "/slots",
        "/lora-adapters",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
        "/v1/detokenize",
        "/apply-template",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/input_tokens",
        "/v1/responses/input_tokens",
        "/api/tags",
        "/api/ps",
        "/api/show",
        "/api/pull",
        "/api/push",
        "/api/create",
        "/api/copy",
        "/api/delete",
        "/api/version",
        "/running",
        "/unload",
        "/api/models/unload",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/reset_prefix_cache",
    ),
}


def _table() -> dict[str, Endpoint]:
    table: dict[str, Endpoint] = {}
    for groups, streams in (
        (_STREAMING, False),
        (_STREAM_BY_DEFAULT, True),
        (_NEVER_STREAMING, None),
    ):
        for kind, paths in groups.items():
            for path in paths:
                table[path] = Endpoint(path=path, kind=kind, streams=streams)
    return table


ENDPOINTS: dict[str, Endpoint] = _table()

# Prefixes that routers put before a known path; a model's name (with slashes, maybe) may follow.
_PREFIXES = ("/upstream/", "/backend/", "/proxy/", "/engines/")
_LONGEST_FIRST = sorted(ENDPOINTS, key=len, reverse=True)


def find(url: str) -> Endpoint | None:
    """The endpoint a request target names, its query and a router's prefix dropped."""
    path = url.split("?", 1)[0].split("#", 1)[0]
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[3] if path.count("/") >= 3 else "/"
    if len(path) > 1:
        path = path.rstrip("/")
    known = ENDPOINTS.get(path)
    if known is None and path.startswith(_PREFIXES):
        known = _behind_prefix(path)
    return known


def _behind_prefix(path: str) -> Endpoint | None:
    """The longest known path that ends `path`, after a prefix and at least one name."""
    at = path.index("/", 1) + 1
    found = next((known for known in _LONGEST_FIRST if path.endswith(known, at)), None)
    return None if found is None else ENDPOINTS[found]


def kind_of(endpoint: str | None) -> Kind | None:
    """The kind of a record's `endpoint`; None where the endpoint is unknown."""
    known = ENDPOINTS.get(endpoint) if endpoint is not None else None
    return known.kind if known else None


def is_inference(endpoint: str | None) -> bool:
    """Whether a record's `endpoint` is an inference call, so a request of the contract."""
    known = ENDPOINTS.get(endpoint) if endpoint is not None else None
    return known is not None and known.inference
