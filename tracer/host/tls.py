"""No TLS in this process: what we speak goes over a Unix socket."""

from __future__ import annotations

import sys
from importlib.util import find_spec

#: The interpreter's own hashes, with which `hashlib` does without OpenSSL.
_HASHES = ("_md5", "_sha1", "_sha3", "_blake2")


def without_tls() -> None:
    """Leave OpenSSL out of this process: 4 MB, and 15 ms at the start.

    asyncio and http.client import `ssl` whether it is used or not, and do without where it is
    missing: call it before they are imported.
    """
    if "ssl" in sys.modules or "_hashlib" in sys.modules:
        return
    if all(map(find_spec, _HASHES)):
        sys.modules["_hashlib"] = None  # type: ignore[assignment]
    sys.modules["ssl"] = None  # type: ignore[assignment]
