"""HTTP over the daemon's Unix socket. Imports little: `ttft spikes` has 0.12 s in all."""

from __future__ import annotations

import errno
import http.client
import json
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from tracer.errors import TtftError

TIMEOUT_S = 10.0
NO_DAEMON = 3


class UnknownPath(TtftError):
    """A daemon that does not know what is asked: another version than ours."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("ttft", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """The daemon behind one socket."""

    def __init__(
        self, socket_path: str, timeout_s: float = TIMEOUT_S, elsewhere: bool = False
    ) -> None:
        """`elsewhere`: somebody named this socket, who may have named the wrong one."""
        self._path = socket_path
        self._timeout_s = timeout_s
        self._elsewhere = elsewhere

    def get(self, path: str, query: Mapping[str, object] | None = None) -> bytes:
        """The body of a good answer; `TtftError` for anything else. None in `query`: left out."""
        with self._response(path, query or {}, self._timeout_s) as response:
            body: bytes = response.read()
            return body

    def stream(
        self, path: str, query: Mapping[str, object] | None = None
    ) -> Generator[bytes, None, None]:
        """Pieces of an answer that goes on, as they come; they end early with `TtftError`."""
        with self._response(path, query or {}, None) as response:
            while piece := response.read1(65536):
                yield piece

    @contextmanager
    def _response(
        self, path: str, query: Mapping[str, object], timeout_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self._path, timeout_s)
        try:
            connection.request("GET", _target(path, query), headers={"Connection": "close"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise _refusal(response, path)
            yield response
        except http.client.IncompleteRead as error:
            raise TtftError("the daemon ended its answer early", "is it stopping?") from error
        except http.client.HTTPException as error:
            raise TtftError(
                f"{self._path}: not an answer of ttftd ({type(error).__name__})",
                "another program listens there; give ttftd's socket with --socket",
            ) from error
        except OSError as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _unreachable(self, error: OSError) -> TtftError:
        if isinstance(error, BrokenPipeError | ConnectionResetError):
            return TtftError("the daemon closed the connection", "is it stopping?")
        if isinstance(error, TimeoutError):
            return TtftError(
                f"ttftd on {self._path} did not answer in {self._timeout_s:.0f} s",
                "systemctl status ttftd says how it is",
                NO_DAEMON,
            )
        if error.errno in (errno.EACCES, errno.EPERM):
            return TtftError(
                f"no permission to use {self._path}",
                "use sudo, or join the group ttft: sudo usermod -aG ttft $USER, "
                "then log out and in again",
            )
        hint = "start it with: sudo systemctl start ttftd (or: sudo ttftd run)"
        if self._elsewhere:
            hint = "is this the daemon's socket? It is named by --socket or TTFT_SOCKET"
        if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
            hint = f"{error.strerror or error}: give its socket with --socket"
        return TtftError(f"no daemon answers on {self._path}", hint, NO_DAEMON)


def _target(path: str, query: Mapping[str, object]) -> str:
    pairs = [
        f"{key}={quote(str(value), safe='')}" for key, value in query.items() if value is not None
    ]
    return quote(path, safe="/") + ("?" + "&".join(pairs) if pairs else "")


def _refusal(response: http.client.HTTPResponse, path: str) -> TtftError:
    body = response.read(65536)
    try:
        answer = json.loads(body)
        if response.status == http.client.NOT_FOUND and answer["error"] == "not found":
            return UnknownPath(
                f"this ttftd does not know {path}: it is older than ttft",
                "restart it after the update: sudo systemctl restart ttftd",
            )
        return TtftError(str(answer["error"]), answer.get("hint") or _hint(response.status))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = f"the daemon refused: {response.status} {response.reason}"
        return TtftError(text, _hint(response.status))


def _hint(status: int) -> str:
    if status == http.client.SERVICE_UNAVAILABLE:
        return "it is busy; try again"
    if status == http.client.INTERNAL_SERVER_ERROR:
        return "its log says why: journalctl -u ttftd"
    return "is another program listening on this socket?"
