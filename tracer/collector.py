"""What may be the address and headers of a collector: what HTTP lets pass, and no library refuses
later. ValueError says what is wrong, and tells no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

URL_MAX = 2048
_VISIBLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\t -~\xa0-\xff]{0,8192}")
_LABEL_MAX = 63
_HOST_MAX = 253


def address(text: str) -> SplitResult:
    """The parts of an address."""
    if len(text) > URL_MAX or not _VISIBLE.fullmatch(text):
        raise ValueError("is too long, or has spaces or characters that an address has not")
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise ValueError("has a port or an IPv6 address that is none") from None
    if url.scheme not in ("http", "https") or not host:
        raise ValueError("is not http:// or https:// and a host")
    if port == 0:
        raise ValueError("has a port that is none")
    labels = host.removesuffix(".").split(".")
    if len(host) > _HOST_MAX or not all(0 < len(label) <= _LABEL_MAX for label in labels):
        raise ValueError("has a host that is none")
    return url


def headers(given: Mapping[str, str]) -> dict[str, str]:
    """Headers as they can be sent."""
    for name, value in given.items():
        if not _NAME.fullmatch(name):
            raise ValueError("have a name that no header has")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"cannot be sent: {name} has a line break or odd characters")
    return dict(given)
