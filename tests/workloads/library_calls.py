"""Stand-ins for libraries of accelerators and engines, and a program that calls them.

The stand-ins export the names of the catalogue and do nothing: they are no CUDA, no HIP, no
Vulkan. What is learnt from them is how calls and their arguments are counted.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Self

# How distributions build: functions begin with a landing mark, and save a register.
_AS_SHIPPED = ["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]
if platform.machine() == "x86_64":
    _AS_SHIPPED.append("-fcf-protection=branch")
SOURCE = Path(__file__).with_suffix(".c")


#: How libcuda looks its functions up: the newest version of a name, and that one's twin for a
#: stream of each thread where flag 2 asks for it.
_LOOK_UP = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *export(const char *name)
{
	for (unsigned i = 0; i < sizeof(exports) / sizeof(*exports); i++)
		if (!strcmp(exports[i].name, name))
			return exports[i].at;
	return 0;
}

int cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *status)
{
	static const char *const versions[] = {"_v4", "_v3", "_v2", ""};
	static const char *const streams[] = {"_ptsz", "_ptds", ""};
	char text[128];

	*at = 0;
	for (unsigned s = flags & 2 ? 0 : 2; s < 3 && !*at; s++)
		for (unsigned v = 0; v < 4 && !*at; v++) {
			snprintf(text, sizeof(text), "%s%s%s", name, versions[v], streams[s]);
			*at = export(text);
		}
	*status = *at ? 0 : 1;
	return *at ? 0 : 500;
}
"""


def _looking_up(symbols: Iterable[str]) -> str:
    rows = "".join(f'{{"{name}", {name}}},\n' for name in symbols)
    return f"static const struct {{ const char *name; void *at; }} exports[] = {{\n{rows}}};\n"


def make_library(
    folder: Path, file: str, symbols: Iterable[str], *, looks_up: bool = False
) -> Path:
    """A shared library `file` whose functions return at once.

    `looks_up`: it has libcuda's own way to them as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, symbols = folder / file, list(symbols)
    lines = ['const char ttft_stand_in[] = "a stand-in of ttft\'s tests";']
    lines += [f'long {name}(void) {{ __asm__ volatile(""); return 0; }}' for name in symbols]
    if looks_up:
        lines += [_looking_up(symbols), _LOOK_UP]
    source = folder / f"{file}.c"
    source.write_text("\n".join(lines) + "\n")
    command = ["clang", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{file}", *_AS_SHIPPED]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    return target


def make_caller(folder: Path, linked: Path | None = None, symbols: Iterable[str] = ()) -> Path:
    """The program; `linked`: a library whose `symbols` it is linked to, so needs no look-up."""
    if linked is None:
        target, extra = folder / "caller", []
    else:
        target, header = folder / f"caller-{linked.name}", folder / f"{linked.name}.h"
        header.write_text(f"#define LINKED_ALL {' '.join(f'LINKED({name})' for name in symbols)}\n")
        extra = [f'-DDIRECT="{header}"', str(linked), f"-Wl,-rpath,{linked.parent}"]
    command = ["clang", "-O1", "-o", str(target), str(SOURCE), *extra, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return target


class Caller:
    """A running one; `with` ends it."""

    def __init__(self, *command: str | Path) -> None:
        self._process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> str:
        """One line of work; what it answers, when it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer.endswith("done"), (line, answer, self._process.poll())
        return answer.removesuffix("done").strip()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(10) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
