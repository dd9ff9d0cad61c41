"""Run a command in a guest with another kernel: `python -m tests.vm --kernel 6.1 -- COMMAND`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from tests.vm.cache import BuildError
from tests.vm.catalogue import catalogue
from tests.vm.machine import CGROUPS, MOUNTS, GuestError, Machine, Options

_EXAMPLES = """
examples:
  python -m tests.vm --kernel 6.1 -- ttft doctor
  python -m tests.vm --kernel newest --append lockdown=integrity -- ttft doctor --json
  python -m tests.vm --kernel 5.10 --mounts none -- sh -c 'mount; ls /sys/fs/cgroup'
  python -m tests.vm --kernel 6.12 --script checks.txt --out build/vm   # a command a line
  python -m tests.vm --kernel 6.12 --icount 0 -- python3 count.py

In the guest: the checkout (read-only) is the working folder, $OUT the folder of --out.
Exit status: the command's (the first that failed); 125 when the guest hung or crashed, 126 when
it could not be made.
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = catalogue()
    parser.add_argument("--kernel", required=True, choices=list(known.kernels))
    parser.add_argument("--userland", default="lane", choices=list(known.userlands))
    parser.add_argument("--cgroup", default="v2", choices=CGROUPS)
    parser.add_argument("--mounts", default=",".join(MOUNTS), help="some of these, or none")
    parser.add_argument("--append", default="", help="for the kernel's command line")
    parser.add_argument("--smp", type=int, default=1)
    parser.add_argument("--memory", type=int, default=1024, help="MiB")
    parser.add_argument("--icount", type=int, help="the guest's clock counts instructions: 2^N ns")
    parser.add_argument("--timeout", type=float, default=300, help="of the whole, seconds")
    parser.add_argument("--out", type=Path, help="results' folder  [default: a temporary one]")
    parser.add_argument("--script", type=Path, help="a file with a command on each line")
    parser.add_argument("--verbose", action="store_true", help="the console too, at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> int:
    """Exit status for the shell."""
    given = _arguments()
    words = given.command[1:] if given.command[:1] == ["--"] else given.command
    commands = given.script.read_text().splitlines() if given.script else []
    if words:
        commands.append(shlex.join(words))
    options = Options(
        cgroup=given.cgroup,
        mounts=[] if given.mounts == "none" else given.mounts.split(","),
        append=given.append,
        smp=given.smp,
        memory_mb=given.memory,
        icount=given.icount,
        userland=given.userland,
        command_s=int(given.timeout),
    )
    try:
        machine = Machine(given.kernel, options)
        result = machine.run(commands, timeout_s=given.timeout, out=given.out, show=_show)
    except GuestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 125
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 126
    if given.verbose:
        print(result.console, file=sys.stderr)
    took = ", ".join(f"{command.seconds:g}" for command in result.commands)
    print(f"vm: {result.release}: {result.seconds:.1f} s ({took}); {result.out}", file=sys.stderr)
    return next((command.status for command in result.commands if command.status), 0)


if __name__ == "__main__":
    sys.exit(main())
