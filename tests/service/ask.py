"""In a guest: one streamed chat request to the port given, read to its end."""

from __future__ import annotations

import json
import sys
import urllib.request

URL = f"http://127.0.0.1:{int(sys.argv[1])}/v1/chat/completions"
BODY = {"model": "stub", "stream": True, "messages": []}

request = urllib.request.Request(
    URL, json.dumps(BODY).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request) as answer:
    print(answer.status, len(answer.read()))
