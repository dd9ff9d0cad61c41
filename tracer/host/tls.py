"""No TLS in this process: what we speak goes over a Unix socket."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

#: The interpreter's own hashes, with which `hashlib` does without OpenSSL.
_HASHES = ("_md5", "_sha1", "_sha3", "_blake2")


class _NoTls(ModuleType):
    """Stands for `ssl`: whoever imports it finds names, and nothing that works."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found: object = 0 if name.isupper() else type(name, (), {})
        setattr(self, name, found)
        return found


def without_tls() -> None:
    """Leave OpenSSL out of this process: 4 MB, and 15 ms at the start.

    asyncio, http.client and uvicorn import `ssl` whether it is used or not: call it before.
    """
    if "ssl" in sys.modules or "_hashlib" in sys.modules:
        return
    if all(map(find_spec, _HASHES)):
        sys.modules["_hashlib"] = None  # type: ignore[assignment]
    sys.modules["ssl"] = _NoTls("ssl")
