"""The daemon's own needs are kept small, and nothing breaks by that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from tracer.host.tls import without_tls
without_tls()
import tracer.backend, tracer.client, hashlib, hmac
maps = open("/proc/self/maps").read()
print(json.dumps({
    "openssl": [name for name in ("libcrypto", "libssl", "_ssl.", "_hashlib.") if name in maps],
    "sha256": hashlib.sha256(b"ttft").hexdigest(),
    "md5": hmac.new(b"key", b"ttft", "md5").hexdigest(),
}))
"""


def _ran(program: str) -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    return dict(json.loads(ran.stdout))


def test_the_daemon_loads_no_openssl_and_still_hashes() -> None:
    with_openssl = _ran(PROGRAM.replace("\nwithout_tls()\n", "\n"))
    assert _ran(PROGRAM) == with_openssl | {"openssl": []}
    assert with_openssl["openssl"]


def test_a_process_that_has_tls_keeps_it() -> None:
    program = (
        "import json, ssl\nfrom tracer.host.tls import without_tls\nwithout_tls()\n"
        "import hashlib, ssl as again\n"
        "print(json.dumps({'tls': again is ssl and again.create_default_context() is not None}))\n"
    )
    assert _ran(program) == {"tls": True}


def test_both_programs_start_without_it() -> None:
    program = (
        "import json, sys\nfrom tracer import cli\nfrom tracer.commands import shared\n"
        "shared.run = lambda *_: 0\n"
        "seen = 'ssl' in sys.modules\n"
        "try: cli.{0}()\nexcept SystemExit: pass\n"
        "print(json.dumps([seen, sys.modules.get('ssl', 0)]))\n"
    )
    for entry in ("main", "daemon_main"):
        ran = subprocess.run(
            [sys.executable, "-c", program.replace("{0}", entry)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(ran.stdout) == [False, None]
