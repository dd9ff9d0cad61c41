"""libbpf through ctypes: one thin function per call, every result checked in one place."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import platform
import re
from collections import deque
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from tracer.errors import KernelError

CARRIED = Path(__file__).parent / "libs"
"""Libraries that the wheel carries, a folder for each machine."""

_TRIES = 100
MISSING_HINT = "install libbpf 1.0 or newer: apt-get install libbpf1"
_HINTS = {
    errno.EPERM: "BPF needs root with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN; see `ttft doctor`",
    errno.EACCES: "the kernel's verifier refused the program; please report it with `ttft doctor`",
    errno.ENOMEM: "raise the limit of locked memory (LimitMEMLOCK=infinity, ulimit -l unlimited)",
    errno.ESRCH: "this kernel lacks BTF or the tracepoint (CONFIG_DEBUG_INFO_BTF=y)",
    errno.ENOENT: "this kernel lacks BTF or the tracepoint (CONFIG_DEBUG_INFO_BTF=y)",
    errno.E2BIG: "the table is full",
    errno.EMFILE: "too many open files (LimitNOFILE=65536, ulimit -n)",
    errno.EBUSY: "another program holds it",
}

PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
SAMPLE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class OpenOptions(ctypes.Structure):
    """struct bpf_object_open_opts, as far as it is used."""

    _fields_ = (
        ("sz", c_size_t),
        ("object_name", c_char_p),
        ("relaxed_maps", ctypes.c_bool),
        ("pin_root_path", c_char_p),
        ("unused", c_uint32),
        ("kconfig", c_char_p),
        ("btf_custom_path", c_char_p),
    )


class LoadOptions(ctypes.Structure):
    """struct bpf_prog_load_opts, as far as it is used."""

    _fields_ = (
        ("sz", c_size_t),
        ("attempts", c_int),
        ("expected_attach_type", c_int),
        ("prog_btf_fd", c_uint32),
        ("prog_flags", c_uint32),
        ("prog_ifindex", c_uint32),
        ("kern_version", c_uint32),
        ("attach_btf_id", c_uint32),
    )


class TestRunOptions(ctypes.Structure):
    """struct bpf_test_run_opts."""

    __test__ = False
    _fields_ = (
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    )


#: name: (result, arguments). A pointer result NULL, or a negative number, is a failure.
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "libbpf_set_print": (c_void_p, (PRINT,)),
    "libbpf_version_string": (c_char_p, ()),
    "bpf_object__open_file": (c_void_p, (c_char_p, POINTER(OpenOptions))),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__find_map_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_object__find_program_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_map__initial_value": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "bpf_map__max_entries": (c_uint32, (c_void_p,)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_map__key_size": (c_uint32, (c_void_p,)),
    "bpf_map__value_size": (c_uint32, (c_void_p,)),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__section_name": (c_char_p, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, ctypes.c_bool)),
    "bpf_program__set_expected_attach_type": (c_int, (c_void_p, c_int)),
    "bpf_program__fd": (c_int, (c_void_p,)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_program__attach_cgroup": (c_void_p, (c_void_p, c_int)),
    "bpf_link__destroy": (c_int, (c_void_p,)),
    "bpf_map_lookup_elem": (c_int, (c_int, c_void_p, c_void_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_void_p, c_void_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_void_p)),
    "bpf_map_lookup_and_delete_elem": (c_int, (c_int, c_void_p, c_void_p)),
    "bpf_map_get_next_key": (c_int, (c_int, c_void_p, c_void_p)),
    "bpf_map_lookup_batch": (
        c_int,
        (c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
    ),
    "bpf_map_lookup_and_delete_batch": (
        c_int,
        (c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
    ),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_void_p, POINTER(c_uint32))),
    "bpf_enable_stats": (c_int, (c_int,)),
    "bpf_prog_load": (
        c_int,
        (c_int, c_char_p, c_char_p, c_void_p, c_size_t, POINTER(LoadOptions)),
    ),
    "bpf_prog_test_run_opts": (c_int, (c_int, POINTER(TestRunOptions))),
    "ring_buffer__new": (c_void_p, (c_int, SAMPLE, c_void_p, c_void_p)),
    "ring_buffer__add": (c_int, (c_void_p, c_int, SAMPLE, c_void_p)),
    "ring_buffer__consume": (c_int, (c_void_p,)),
    "ring_buffer__free": (None, (c_void_p,)),
    "libbpf_num_possible_cpus": (c_int, ()),
    "libbpf_probe_bpf_helper": (c_int, (c_int, c_int, c_void_p)),
    "libbpf_probe_bpf_map_type": (c_int, (c_int, c_void_p)),
}

ENOTSUPP = 524  # the kernel's own, not in errno.h
_REFUSED = re.compile(r"prog '(\w+)': .*(?:fail|can't|invalid)", re.IGNORECASE)
_LOG_NOISE = re.compile(r"\s*(processed |-- |libbpf: |\d+: |;|[\w.]+: \(|max_states)")

_MESSAGE = 1 << 20  # a verifier's log, whose end has the reason
#: The last things libbpf said, for hints.
messages: deque[str] = deque(maxlen=40)


def _remember(_level: int, form: bytes | None, arguments: int | None) -> int:
    buffer = ctypes.create_string_buffer(_MESSAGE)
    _libc().vsnprintf(buffer, _MESSAGE, form, arguments)
    messages.append(buffer.value.decode("utf-8", "replace").strip())
    return 0


_PRINTER = PRINT(_remember)  # kept: C holds its address


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.vsnprintf.argtypes = (c_void_p, c_size_t, c_char_p, c_void_p)
    return libc


@cache
def library() -> ctypes.CDLL:
    """libbpf with all signatures set; KernelError where it is missing or too old.

    The system's own, which gets its updates, before the one that the wheel carries.
    """
    try:
        lib = _with_signatures(ctypes.CDLL("libbpf.so.1", use_errno=True))
    except (OSError, KernelError) as error:
        carried = _carried()
        if carried is None and isinstance(error, KernelError):
            raise
        if carried is None:
            raise KernelError(f"libbpf is missing: {error}", MISSING_HINT) from None
        lib = _with_signatures(carried)
    lib.libbpf_set_print(PRINT())
    return lib


def _carried() -> ctypes.CDLL | None:
    """The one in the wheel; what it needs is loaded first, so that it is found by its name."""
    folder = CARRIED / platform.machine()
    try:
        for name in ("libz.so.1", "libzstd.so.1", "libelf.so.1"):
            if (folder / name).exists():
                ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(folder / "libbpf.so.1"), use_errno=True)
    except OSError:
        return None


def _with_signatures(lib: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise KernelError(f"libbpf is too old: it lacks {name}", MISSING_HINT) from None
        function.restype, function.argtypes = result, arguments
    return lib


class TableFullError(KernelError):
    """A map has no room for another entry."""


def listen() -> None:
    """Keep what libbpf says from now on. It says a lot, and each word waits for the interpreter."""
    library().libbpf_set_print(_PRINTER)


def failure(what: str, number: int) -> KernelError:
    """The error for errno `number`, with what libbpf said last and what to do."""
    said = [line for line in messages if "failed" in line or "error" in line.lower()][-2:]
    detail = f" ({'; '.join(said)})" if said else ""
    why = "this kernel cannot" if number == ENOTSUPP else os.strerror(number)
    return KernelError(f"{what}: {why}{detail}", _HINTS.get(number))


def refused() -> tuple[str, str] | None:
    """The program that the last load failed for, and the verifier's or libbpf's reason."""
    said = "\n".join(messages).splitlines()
    found = [(i, m[1]) for i, line in enumerate(said) if (m := _REFUSED.search(line))]
    if not found:
        return None
    at, program = found[-1]
    log = [line.strip() for line in said if line.strip() and not _LOG_NOISE.match(line)]
    reason = said[at].partition(": ")[2] if len(log) < 2 else log[-1]
    return program, reason


def _check(what: str, result: int | None) -> int:
    """A descriptor, count or pointer; KernelError for NULL or a negative number."""
    if result is None or result < 0:
        number = -result if result is not None and result < -1 else ctypes.get_errno()
        raise failure(what, number)
    return result


def open_object(path: str, btf: str | None = None) -> int:
    options = OpenOptions(sz=ctypes.sizeof(OpenOptions), object_name=b"ttft")
    options.btf_custom_path = btf.encode() if btf else None
    messages.clear()
    result = library().bpf_object__open_file(path.encode(), ctypes.byref(options))
    return _check(f"cannot read the BPF object {path}", result)


def load_object(handle: int) -> None:
    messages.clear()
    _check("the kernel refused the BPF object", library().bpf_object__load(handle))


def close_object(handle: int) -> None:
    library().bpf_object__close(handle)


def find_map(handle: int, name: str) -> int:
    found = library().bpf_object__find_map_by_name(handle, name.encode())
    return _check(f"the BPF object has no map {name}", found)


def has_map(handle: int, name: str) -> bool:
    return bool(library().bpf_object__find_map_by_name(handle, name.encode()))


def map_fd(handle: int) -> int:
    return _check("map is not loaded", library().bpf_map__fd(handle))


def map_sizes(handle: int) -> tuple[int, int]:
    """(key, value) in bytes."""
    return library().bpf_map__key_size(handle), library().bpf_map__value_size(handle)


def ring_of(handle: int, name: str) -> tuple[int, int]:
    """Descriptor and size in bytes of a ring."""
    ring = find_map(handle, name)
    return map_fd(ring), library().bpf_map__max_entries(ring)


def set_map_size(handle: int, entries: int) -> None:
    _check("cannot size a map", library().bpf_map__set_max_entries(handle, entries))


def initial_value(handle: int) -> ctypes.Array[ctypes.c_char]:
    """The writable memory of a data section, before load."""
    size = c_size_t()
    pointer = library().bpf_map__initial_value(handle, ctypes.byref(size))
    address = _check("section has no initial value", pointer)
    return (ctypes.c_char * size.value).from_address(address)


def programs(handle: int) -> Iterator[tuple[str, str, int]]:
    """(name, section, program) of each program of the object."""
    lib = library()
    program = lib.bpf_object__next_program(handle, None)
    while program:
        name, section = lib.bpf_program__name(program), lib.bpf_program__section_name(program)
        yield name.decode(), section.decode(), program
        program = lib.bpf_object__next_program(handle, program)


def set_autoload(program: int, on: bool) -> None:
    _check("cannot set autoload", library().bpf_program__set_autoload(program, on))


def set_attach_type(program: int, kind: int) -> None:
    """What a program will be attached to: a value of `enum bpf_attach_type`."""
    result = library().bpf_program__set_expected_attach_type(program, kind)
    _check("cannot set what a program attaches to", result)


def program_fd(program: int) -> int:
    return _check("program is not loaded", library().bpf_program__fd(program))


def attach(program: int) -> int:
    messages.clear()
    return _check("cannot attach", library().bpf_program__attach(program))


def attach_cgroup(program: int, cgroup_fd: int) -> int:
    messages.clear()
    result = library().bpf_program__attach_cgroup(program, cgroup_fd)
    return _check("cannot attach to the cgroup", result)


def destroy_link(link: int) -> None:
    _check("cannot detach", library().bpf_link__destroy(link))


def lookup(fd: int, key: bytes, size: int) -> bytes | None:
    """The value, or None where there is no such key."""
    value = ctypes.create_string_buffer(size)
    result = library().bpf_map_lookup_elem(fd, key, value)
    if result < 0 and ctypes.get_errno() == errno.ENOENT:
        return None
    _check("cannot read a map", result)
    return value.raw


def update(fd: int, key: bytes, value: bytes, flags: int = 0) -> None:
    """Tried again where a task's storage was being made at the same moment (EAGAIN)."""
    for _ in range(_TRIES):
        result = library().bpf_map_update_elem(fd, key, value, flags)
        if result >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
        os.sched_yield()
    if result < 0 and ctypes.get_errno() == errno.E2BIG:
        raise TableFullError("cannot write a map: it is full", _HINTS.get(errno.E2BIG))
    _check("cannot write a map", result)


def delete(fd: int, key: bytes) -> bool:
    """False where there was no such key."""
    result = library().bpf_map_delete_elem(fd, key)
    if result < 0 and ctypes.get_errno() == errno.ENOENT:
        return False
    _check("cannot delete from a map", result)
    return True


def lookup_and_delete(fd: int, key: bytes, size: int) -> bytes | None:
    """The value as it was when it was deleted; None where there was no such key.

    Before 3e87f192b405 (5.14) a hash cannot do that at once: then it is as it was just before.
    """
    value = ctypes.create_string_buffer(size)
    result = library().bpf_map_lookup_and_delete_elem(fd, key, value)
    if result < 0 and ctypes.get_errno() == errno.ENOENT:
        return None
    if result < 0 and ctypes.get_errno() in (ENOTSUPP, errno.EINVAL):
        found = lookup(fd, key, size)
        return found if delete(fd, key) else None
    _check("cannot take out of a map", result)
    return value.raw


def next_key(fd: int, key: bytes | None, size: int) -> bytes | None:
    following = ctypes.create_string_buffer(size)
    result = library().bpf_map_get_next_key(fd, key, following)
    if result < 0 and ctypes.get_errno() == errno.ENOENT:
        return None
    _check("cannot walk a map", result)
    return following.raw


def lookup_batch(
    fd: int,
    cursor: bytes | None,
    key_size: int,
    value_size: int,
    most: int,
    *,
    take: bool = False,
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Up to `most` entries and where to go on, None at the end. `take`: they are deleted."""
    keys = ctypes.create_string_buffer(key_size * most)
    values = ctypes.create_string_buffer(value_size * most)
    following = ctypes.create_string_buffer(max(key_size, 8))
    count = c_uint32(most)
    lib = library()
    result = (lib.bpf_map_lookup_and_delete_batch if take else lib.bpf_map_lookup_batch)(
        fd, cursor, following, keys, values, ctypes.byref(count), None
    )
    at_end = result < 0 and ctypes.get_errno() == errno.ENOENT
    if not at_end:
        _check("cannot read a map", result)
    many = count.value
    raw_keys = ctypes.string_at(keys, key_size * many)
    raw_values = ctypes.string_at(values, value_size * many)
    found = [
        (
            raw_keys[i * key_size : (i + 1) * key_size],
            raw_values[i * value_size : (i + 1) * value_size],
        )
        for i in range(many)
    ]
    return found, None if at_end else following.raw


def info(fd: int, size: int) -> bytes:
    """struct bpf_prog_info or bpf_map_info, `size` bytes of it."""
    buffer, length = ctypes.create_string_buffer(size), c_uint32(size)
    result = library().bpf_obj_get_info_by_fd(fd, buffer, ctypes.byref(length))
    _check("cannot ask about a BPF object", result)
    return buffer.raw


def info_size(fd: int, size: int) -> int:
    """How many of `size` bytes of such a struct this kernel knows."""
    buffer, length = ctypes.create_string_buffer(size), c_uint32(size)
    result = library().bpf_obj_get_info_by_fd(fd, buffer, ctypes.byref(length))
    _check("cannot ask about a BPF object", result)
    return int(length.value)


def enable_stats() -> int:
    """A descriptor: run times are counted for as long as it is open."""
    return _check("cannot count run time", library().bpf_enable_stats(0))


def run_test(
    program: int, data_in: bytes, out_size: int = 0, context: bytes = b""
) -> tuple[int, bytes]:
    """The kernel's own test run of a loaded program: its result and the data after it."""
    out = ctypes.create_string_buffer(max(out_size, len(data_in)))
    given = ctypes.create_string_buffer(data_in, max(len(data_in), 1))
    ctx = ctypes.create_string_buffer(context, max(len(context), 1))
    options = TestRunOptions(sz=ctypes.sizeof(TestRunOptions))
    if data_in:
        options.data_in = ctypes.cast(given, c_void_p)
        options.data_out = ctypes.cast(out, c_void_p)
        options.data_size_in, options.data_size_out = len(data_in), len(out)
    if context:
        options.ctx_in, options.ctx_size_in = ctypes.cast(ctx, c_void_p), len(context)
    result = library().bpf_prog_test_run_opts(program_fd(program), ctypes.byref(options))
    _check("test run failed", result)
    return options.retval, out.raw[: options.data_size_out]


def new_ring(fd: int, callback: Callable[..., int]) -> int:
    result = library().ring_buffer__new(fd, callback, None, None)
    return _check("cannot map a ring", result)


def add_ring(ring: int, fd: int, callback: Callable[..., int]) -> None:
    _check("cannot map a ring", library().ring_buffer__add(ring, fd, callback, None))


def consume_ring(ring: int) -> None:
    _check("cannot read a ring", library().ring_buffer__consume(ring))


def free_ring(ring: int) -> None:
    library().ring_buffer__free(ring)


def possible_cpus() -> int:
    return _check("cannot count processors", library().libbpf_num_possible_cpus())


def has_helper(program_type: int, helper: int) -> bool:
    return bool(library().libbpf_probe_bpf_helper(program_type, helper, None) == 1)


def try_program(
    kind: int, code: bytes, expected_attach_type: int = 0, attach_btf_id: int = 0
) -> int:
    """Load instructions and let them go: 0 where the kernel takes them, else the errno."""
    options = LoadOptions(sz=ctypes.sizeof(LoadOptions), attempts=1)
    options.expected_attach_type, options.attach_btf_id = expected_attach_type, attach_btf_id
    held = ctypes.create_string_buffer(code, len(code))
    fd = library().bpf_prog_load(
        kind, b"ttft_probe", b"GPL", held, len(code) // 8, ctypes.byref(options)
    )
    if fd < 0:
        return ctypes.get_errno()
    os.close(fd)
    return 0


def has_map_type(map_type: int) -> bool:
    return bool(library().libbpf_probe_bpf_map_type(map_type, None) == 1)


def version() -> str:
    said: bytes = library().libbpf_version_string()
    return said.decode().lstrip("v")
