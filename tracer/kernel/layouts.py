"""Layouts shared with the kernel side: bpf/records.h, bpf/maps.h and the options.

tests/bpf/test_layout.py compares every one with the BTF of the built object. All are little
endian without implicit padding. A dot in a field's name is a nested struct.
"""

from __future__ import annotations

import struct


class Layout:
    """A C struct: `fields` are (name, `struct` code) in order."""

    def __init__(self, name: str, fields: str) -> None:
        self.name = name
        self.fields = tuple((n, c) for n, c in (f.split(":") for f in fields.split()))
        self.packer = struct.Struct("<" + "".join(code for _, code in self.fields))
        self.size = self.packer.size
        self.names = tuple(n for n, _ in self.fields)

    def unpack(self, data: bytes) -> tuple[int | bytes, ...]:
        """The values of a struct at the beginning of `data`, which is long enough."""
        return self.packer.unpack_from(data)

    def members(self) -> list[tuple[str, int, int]]:
        """(name, offset, size) of each field."""
        found, offset = [], 0
        for name, code in self.fields:
            size = struct.calcsize("<" + code)
            found.append((name, offset, size))
            offset += size
        return found


_H = "h.ts_ns:Q h.tgid:I h.tid:I h.kind:H h.reserved:H h.flags:I "
_F = "file.ino:Q file.dev:I file.token:I "
_CONN = (
    "conn.server_addr:16s conn.client_addr:16s conn.netns:I conn.server_port:H "
    "conn.client_port:H conn.family:I "
)

HEADER = Layout("ttft_header", _H.replace("h.", ""))
FORK = Layout("ttft_fork", _H + "child_tgid:I reserved:I comm:16s")
EXEC = Layout("ttft_exec", _H + "comm:16s filename:256s")
EXIT = Layout("ttft_exit", _H + "code:I reserved:I")
SIGNAL = Layout("ttft_signal", _H + "target_tgid:I signal:i code:i reserved:I")
FILE = Layout("ttft_file", _H + _F + "size:Q fd:i reserved:I name:256s")
OPEN = Layout("ttft_open", _H + _F + "size:Q open_flags:I reserved:I")
MAGIC = Layout("ttft_magic", _H + _F + "bytes:16s")
SPAN = Layout("ttft_span", _H + _F + "end_ns:Q busy_ns:Q bytes:Q count:I op:I")
INSERT = Layout("ttft_insert", _H + _F + "end_ns:Q pages:Q")
CONN = Layout("ttft_conn", _CONN.replace("conn.", ""))
LISTEN = Layout("ttft_listen", _H + _CONN + "reserved:I cgroup:Q")
CONNECT = Layout("ttft_connect", _H + _CONN + "reserved:I")
TAKE = Layout("ttft_take", _H + _CONN + "reserved:I")
PACKET = Layout("ttft_packet", _H + _CONN + "seq:I ack:I payload_len:I captured:I tcp_flags:I")
LINKED = Layout("ttft_linked", _H)
CALL = Layout("ttft_call", _H + "end_ns:Q follow_ns:Q last_ns:Q amount:Q count:I call:I")
CACHED = Layout("ttft_cached", _H + "stem:Q folder:I open_flags:I")
DEVICE = Layout(
    "ttft_device",
    _H + "end_ns:Q busy_ns:Q bytes:Q rdev:I driver:I count:I failed:I what:I number:I",
)

FILE_KEY = Layout("ttft_file_key", "ino:Q dev:I reserved:I")
FILE_STATE = Layout(
    "ttft_file_state",
    "size:Q inserted:Q run:Q run_end0_ns:Q run_end1_ns:Q run_pages0:Q run_pages1:Q "
    "run_tgid:I run_tid:I generation:I opens:I magic:I elf:I",
)
SPAN_KEY = Layout("ttft_span_key", "ino:Q dev:I tid:I op:I reserved:I")
SPAN_STATE = Layout(
    "ttft_span_state",
    "begin:I tgid:I start_ns:Q end_ns:Q busy_ns:Q bytes:Q count:I token:I flags:I end:I",
)
TOTAL_KEY = Layout("ttft_total_key", "ino:Q dev:I tgid:I op:I reserved:I")
TOTAL = Layout("ttft_total", "count:Q bytes:Q busy_ns:Q")
PORT_KEY = Layout("ttft_port_key", "netns:I port:H reserved:H")
PORT = Layout("ttft_port", "tgid:I listeners:I")
PORT_HINTS = 8192
CALL_SPEC = Layout(
    "ttft_call_spec",
    "gap_ns:Q measure:I arg:I other:I offset:I stride:I when_arg:I when_value:I reserved:I",
)
FOLDER_KEY = Layout("ttft_folder_key", "bits:I path:128s")
STACK_KEY = Layout("ttft_stack_key", "tgid:I slot:I frames:64s")
#: How long a slot of its time is.
SLOT_NS = 100_000_000
RUN_KEY = Layout("ttft_run_key", "tid:I call:I")
RUN_STATE = Layout(
    "ttft_run_state",
    "begin:I tgid:I start_ns:Q end_ns:Q follow_ns:Q last_ns:Q amount:Q each:Q count:I end:I",
)
DEVICE_NODE = Layout("ttft_device_node", "driver:I type:I whole:I reserved:I")
DEVICE_KEY = Layout("ttft_device_key", "driver:I number:I sub:I has_sub:I")
DEVICE_SPEC = Layout(
    "ttft_device_spec",
    "what:I size:I offset:I through:I plus:I sub_mask:I sub_offset:I flags:I",
)
DEVICE_RUN_KEY = Layout("ttft_device_run_key", "tid:I rdev:I what:I reserved:I")
DEVICE_RUN = Layout(
    "ttft_device_run",
    "begin:I tgid:I start_ns:Q end_ns:Q busy_ns:Q bytes:Q driver:I count:I failed:I number:I "
    "reserved:I end:I",
)
DEVICE_HOLDER = Layout("ttft_device_holder", "tgid:I rdev:I")
OPTIONS = Layout(
    "ttft_options",
    "arch:I signals:I min_file_size:Q span_gap_ns:Q span_max_ns:Q insert_gap_ns:Q "
    "insert_max_ns:Q token_secret:Q rdonly_cast:I reserved:I",
)

RECORDS = (
    HEADER, FORK, EXEC, EXIT, SIGNAL, FILE, OPEN, MAGIC, SPAN, INSERT, CONN, LISTEN, CONNECT,
    TAKE, PACKET, LINKED, CALL, CACHED, DEVICE,
)  # fmt: skip
MAPS = (
    FILE_KEY, FILE_STATE, SPAN_KEY, SPAN_STATE, TOTAL_KEY, TOTAL, PORT_KEY, PORT, CALL_SPEC,
    RUN_KEY, RUN_STATE, FOLDER_KEY, STACK_KEY, DEVICE_NODE, DEVICE_KEY, DEVICE_SPEC,
    DEVICE_RUN_KEY, DEVICE_RUN, DEVICE_HOLDER, OPTIONS,
)  # fmt: skip

KINDS = {
    1: "fork", 2: "exec", 3: "exit", 4: "signal", 5: "file", 6: "open", 7: "magic", 8: "span",
    9: "insert", 10: "listen", 11: "connect", 12: "take", 13: "packet",
    14: "linked", 15: "call", 16: "cached", 17: "device",
}  # fmt: skip
#: Suffix of the kind of a loss: no room in the ring, a full map, a look-up that failed.
LOSSES = ("", ".table", ".lookup", ".half")
KIND_SLOTS = 32
#: All minors of a major, in `device_nodes`.
ANY_MINOR = 0xFFFFF
#: How the bytes of a driver call are read from its argument.
DEVICE_SIZES = ("none", "u64", "u32", "pointed")
#: How the amount of a call is read from its arguments.
MEASURES = ("none", "arg", "u32", "product", "pointed", "array", "batch")
