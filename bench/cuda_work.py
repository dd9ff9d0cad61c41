"""A small CUDA program on the driver's own interface, by ctypes: known work, told in JSON.

`bench/gpu_check.py` runs it: it loads libcuda, waits for a request on a local port as a model
server would, works, answers with one token, writes what it did to its standard output, and stays
until its standard input is closed. It needs nothing but Python.
`--probe` asks the driver for a device and ends: exit code 0 where there is one, else 3, the reason
on standard error.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

MIB = 1 << 20
NO_DEVICE = 3
ALLOCATED = (16 * MIB, 48 * MIB + 4096, MIB)
PINNED = 32 * MIB
#: (bytes, times) of copies from ordinary and from pinned memory.
COPIED = (16 * MIB, 5)
COPIED_ASYNC = (3 * MIB + 13, 7)
LAUNCHES = 100
CAPTURED = 3
GRAPH_LAUNCHES = 4
ELEMENTS = 256 * 1024
_THREADS = 256
#: The oldest architecture that a driver still compiles for differs: tried in this order.
TARGETS = ("sm_50", "sm_75", "sm_90")
PTX = """.version 6.3
.target {target}
.address_size 64
.visible .entry add_one(.param .u64 data)
{{
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd3, %rd1, %rd2;
  ld.global.u32 %r5, [%rd3];
  add.u32 %r5, %r5, 1;
  st.global.u32 [%rd3], %r5;
  ret;
}}
"""
SOURCE = (
    b'extern "C" __global__ void add_two(unsigned *d) { d[blockIdx.x * 256 + threadIdx.x] += 2; }'
)
#: Functions that are called beside those of the catalogue.
ALSO = (
    "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuCtxSetCurrent", "cuMemcpyDtoH_v2",
    "cuStreamCreate", "cuStreamSynchronize", "cuStreamDestroy_v2", "cuModuleGetFunction",
    "cuLaunchKernel", "cuGraphExecDestroy", "cuGraphDestroy", "cuModuleUnload", "cuMemFree_v2",
    "cuMemFreeHost", "cuDevicePrimaryCtxRelease_v2", "cuMemsetD8_v2",
)  # fmt: skip
NVRTC_ALSO = ("nvrtcCreateProgram", "nvrtcGetPTXSize", "nvrtcGetPTX", "nvrtcDestroyProgram")


class CudaError(Exception):
    """A call that failed, with its number."""


class Calls:
    """Functions of a library by name; how often each was called, with how many bytes."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.done: dict[str, list[int]] = {}

    def __call__(self, name: str, *arguments: Any, size: int = 0, may_fail: bool = False) -> int:
        counts = self.done.setdefault(name, [0, 0])
        counts[0] += 1
        counts[1] += size
        result = int(getattr(self._library, name)(*arguments))
        if result and not may_fail:
            raise CudaError(f"{name} returned error {result}")
        return result


class Work:
    """All of it, in order; `check` off: the library is a stand-in, so results mean nothing."""

    def __init__(self, cuda: Calls, nvrtc: Calls | None, check: bool) -> None:
        self._cuda, self._nvrtc, self._check = cuda, nvrtc, check
        self.device_name = ""

    def run(self) -> None:
        cuda, context, stream = self._cuda, ctypes.c_void_p(), ctypes.c_void_p()
        device = open_device(cuda, self._check)
        name = ctypes.create_string_buffer(128)
        cuda("cuDeviceGetName", name, 128, device)
        self.device_name = name.value.decode("utf-8", "replace")
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        cuda("cuCtxSetCurrent", context)
        cuda("cuStreamCreate", ctypes.byref(stream), 0)
        blocks = [self._allocate(size) for size in ALLOCATED]
        self._upload(blocks[0], blocks[1], stream)
        module = self._module(blocks[2], stream)
        if self._nvrtc is not None:
            self._compile(self._nvrtc)
        cuda("cuModuleUnload", module)
        for block in blocks:
            cuda("cuMemFree_v2", block)
        cuda("cuStreamDestroy_v2", stream)
        cuda("cuDevicePrimaryCtxRelease_v2", device)

    def _allocate(self, size: int) -> ctypes.c_uint64:
        block = ctypes.c_uint64()
        self._cuda("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size), size=size)
        return block

    def _upload(self, first: Any, second: Any, stream: Any) -> None:
        cuda, host = self._cuda, ctypes.c_void_p()
        size, times = COPIED
        source = ctypes.create_string_buffer(size)
        for _ in range(times):
            cuda("cuMemcpyHtoD_v2", first, source, ctypes.c_size_t(size), size=size)
        pinned = ctypes.c_size_t(PINNED)
        cuda("cuMemHostAlloc", ctypes.byref(host), pinned, 0, size=PINNED)
        size, times = COPIED_ASYNC
        origin = host if self._check else ctypes.cast(source, ctypes.c_void_p)
        for _ in range(times):
            length = ctypes.c_size_t(size)
            cuda("cuMemcpyHtoDAsync_v2", second, origin, length, stream, size=size)
        cuda("cuStreamSynchronize", stream)
        cuda("cuMemFreeHost", host)

    def _module(self, block: Any, stream: Any) -> ctypes.c_void_p:
        """Launches by themselves and in a graph, and looks whether they were done."""
        cuda, module, function = self._cuda, ctypes.c_void_p(), ctypes.c_void_p()
        for target in TARGETS:
            image = PTX.format(target=target).encode()
            last = target == TARGETS[-1]
            if not cuda("cuModuleLoadData", ctypes.byref(module), image, may_fail=not last):
                break
        cuda("cuModuleGetFunction", ctypes.byref(function), module, b"add_one")
        cuda("cuMemsetD8_v2", block, 0, ctypes.c_size_t(ALLOCATED[2]))
        for _ in range(LAUNCHES):
            self._launch(function, block, stream)
        graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
        cuda("cuStreamBeginCapture_v2", stream, 0)
        for _ in range(CAPTURED):
            self._launch(function, block, stream)
        cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
        flags = ctypes.c_ulonglong(0)
        cuda("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, flags)
        for _ in range(GRAPH_LAUNCHES):
            cuda("cuGraphLaunch", instance, stream)
        cuda("cuStreamSynchronize", stream)
        result = (ctypes.c_uint32 * ELEMENTS)()
        cuda("cuMemcpyDtoH_v2", result, block, ctypes.c_size_t(4 * ELEMENTS))
        wanted = LAUNCHES + CAPTURED * GRAPH_LAUNCHES
        if self._check and set(result) != {wanted}:
            raise CudaError(f"the kernel gave {result[0]}, not {wanted}")
        cuda("cuGraphExecDestroy", instance)
        cuda("cuGraphDestroy", graph)
        return module

    def _launch(self, function: Any, block: Any, stream: Any) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        grid = ELEMENTS // _THREADS
        self._cuda(
            "cuLaunchKernel", function, grid, 1, 1, _THREADS, 1, 1, 0, stream, arguments, None
        )

    def _compile(self, nvrtc: Calls) -> None:
        """A kernel from source, and the module that it becomes."""
        program, length, module = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
        nvrtc("nvrtcCreateProgram", ctypes.byref(program), SOURCE, b"two.cu", 0, None, None)
        nvrtc("nvrtcCompileProgram", program, 0, None)
        nvrtc("nvrtcGetPTXSize", program, ctypes.byref(length))
        image = ctypes.create_string_buffer(length.value + 1)
        nvrtc("nvrtcGetPTX", program, image)
        load = ("cuModuleLoadDataEx", ctypes.byref(module), image, 0, None, None)
        # An NVRTC newer than the driver makes PTX that the driver cannot read.
        if not self._cuda(*load, may_fail=True):
            self._cuda("cuModuleUnload", module)
        nvrtc("nvrtcDestroyProgram", ctypes.byref(program))


def open_device(cuda: Calls, check: bool) -> int:
    """The first device; CudaError where there is none."""
    count, device = ctypes.c_int(), ctypes.c_int()
    cuda("cuInit", 0)
    cuda("cuDeviceGetCount", ctypes.byref(count))
    if check and not count.value:
        raise CudaError("the driver has no device")
    cuda("cuDeviceGet", ctypes.byref(device), 0)
    return device.value


TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"done"}}]}\n\ndata: [DONE]\n\n'


def handler(work: Callable[[], None]) -> type[BaseHTTPRequestHandler]:
    """Answers a request with one token, when the work is done."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            try:
                work()
            except CudaError as error:
                sys.exit(str(error))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(TOKEN)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main(argv: Sequence[str] | None = None) -> int:
    """Probe, or serve one request."""
    parser = argparse.ArgumentParser(prog="cuda_work", description=__doc__)
    parser.add_argument("--cuda", default="libcuda.so.1", help="the driver's library")
    parser.add_argument(
        "--nvrtc", help="NVRTC's library; without it nothing is compiled from source"
    )
    parser.add_argument(
        "--stand-in", action="store_true", help="the library is none: trust nothing"
    )
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args(argv)
    try:
        cuda = Calls(given.cuda)
        nvrtc = Calls(given.nvrtc) if given.nvrtc else None
        if given.probe:
            open_device(cuda, not given.stand_in)
            return 0
        work = Work(cuda, nvrtc, not given.stand_in)
        with HTTPServer(("127.0.0.1", given.port), handler(work.run)) as server:
            server.handle_request()
            done = {**cuda.done, **(nvrtc.done if nvrtc else {})}
            print(json.dumps({"device": work.device_name, "calls": done}), flush=True)
            sys.stdin.read()
    except (OSError, AttributeError, CudaError) as error:
        print(error, file=sys.stderr)
        return NO_DEVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())
