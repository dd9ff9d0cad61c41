"""A first look at a request's first bytes, before anything is read of it."""

from __future__ import annotations

#: Methods that load no model into a process that runs already.
LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})
_STARTS = tuple(f"{method} ".encode() for method in sorted(LOOKS))


def only_looks(payload: bytes) -> bool:
    """Whether bytes to a server begin a request that asks for no work of a model.

    The middle of a request, TLS and whatever else does not begin like HTTP may ask for some.
    """
    return payload.startswith(_STARTS)
