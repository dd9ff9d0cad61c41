"""Boot a guest, run commands in it, and have what they printed, returned and left.

    result = run_guest("6.1", ["ttft doctor --json"], Options(cgroup="hybrid"))
    result.commands[0].status, result.commands[0].output, result.out / "some.json"

In the guest the checkout is the working folder (read-only; the built objects are in it),
`$OUT` is `result.out`, and `python3` has the project and its run-time dependencies.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm import images
from tests.vm.cache import BuildError
from tests.vm.catalogue import ROOT, catalogue
from tests.vm.images import KernelImage

HERE = Path(__file__).parent
MOUNTS = ("tracefs", "debugfs", "bpffs", "securityfs")
CGROUPS = ("v2", "v1", "hybrid", "none")
#: Without mitigations emulation is quicker.
_LINE = "root=/dev/vda rw quiet panic=-1 mitigations=off random.trust_cpu=on"
_POLL_S = 0.05
_TAIL_LINES = 25


class GuestError(Exception):
    """The guest did not do its job: it hung, crashed or never came up."""


@dataclass(frozen=True)
class Options:
    """How a guest is made.

    `append`: to the kernel's command line. `icount`: one processor that takes 2**icount ns
    of the guest's time an instruction, so its clock counts them. `command_s`: each command's
    limit, seconds. `userland`: of kernels.toml; those with systemd boot with it.
    """

    cgroup: str = "v2"
    mounts: Sequence[str] = MOUNTS
    append: str = ""
    smp: int = 1
    memory_mb: int = 1024
    icount: int | None = None
    userland: str = "lane"
    command_s: int = 600
    disks: Sequence[Path] = ()


@dataclass(frozen=True)
class Command:
    """What became of a command. `status` 124: it took too long. `seconds`: by the guest."""

    command: str
    status: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """What a boot gave. `out`: what the commands left in $OUT; `console`: all the kernel said."""

    kernel: str
    release: str
    commands: list[Command]
    out: Path
    console: str
    seconds: float
    dmesg: str = field(repr=False, default="")


class Machine:
    """A kernel and how it is to be booted. Everything it needs is built here, if missing."""

    def __init__(self, kernel: str, options: Options | None = None) -> None:
        known = catalogue()
        if kernel not in known.kernels:
            raise BuildError(f"no kernel {kernel}; there are {', '.join(known.kernels)}")
        self.name, self.options = kernel, options or Options()
        spec, land = known.kernels[kernel], known.userlands[self.options.userland]
        self.systemd = land.systemd
        self.root = images.userland(land, spec.arch)
        self.libraries = images.libraries(land, spec.arch)
        self.kernel = images.kernel(spec)
        images.compile_checkout(land)

    def run(
        self,
        commands: Sequence[str],
        *,
        timeout_s: float = 300,
        out: Path | None = None,
        show: Callable[[str], None] | None = None,
    ) -> Result:
        """Boots, runs the commands one after the other, switches off. GuestError if it hangs.

        `show` is given what the commands print, as it comes.
        """
        out = (out or Path(tempfile.mkdtemp(prefix="ttft-vm-"))).resolve()
        if (out / "vm").exists():
            shutil.rmtree(out / "vm")
        (out / "vm").mkdir(parents=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ttft-vm-control-") as name:
            control = Path(name)
            self._write(control, commands)
            console = out / "vm" / "console"
            with (out / "vm" / "qemu").open("w") as words:
                process = subprocess.Popen(
                    self._command(control, out, console),
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=subprocess.STDOUT,
                )
                try:
                    _wait(process, begun + timeout_s, _Follower(out / "vm", show))
                finally:
                    process.kill()
                    process.wait()
        took = time.monotonic() - begun
        return self._result(out, list(commands), took, timeout_s)

    def _write(self, control: Path, commands: Sequence[str]) -> None:
        (control / "commands").mkdir()
        for number, command in enumerate(commands):
            (control / "commands" / f"{number:03}").write_text(command + "\n")
        shutil.copy(HERE / "guest" / "job.sh", control / "job")
        shutil.copy(HERE / "guest" / "init.sh", control / "small-init")
        (control / "small-init").chmod(0o755)
        (control / "init").write_text(
            "/sbin/init\n" if self.systemd else "/mnt/control/small-init\n"
        )
        (control / "settings").write_text(
            f"VM_CGROUP={self.options.cgroup}\nVM_MOUNTS={','.join(self.options.mounts)}\n"
            f"VM_COMMAND_S={self.options.command_s}\n"
        )

    def _command(self, control: Path, out: Path, console: Path) -> list[str]:
        options, image = self.options, self.kernel
        line = f"console={_console(image)} {_LINE} {_systemd(self)} {options.append}"
        command = ["setpriv", "--pdeathsig", "KILL", *_system(image, options.icount)]
        command += ["-smp", str(options.smp), "-m", str(options.memory_mb)]
        command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-serial", f"file:{console}", "-snapshot"]
        command += ["-kernel", str(image.vmlinuz), "-initrd", str(image.initrd)]
        command += ["-append", line]
        for disk in (self.root, self.libraries, *options.disks):
            command += ["-drive", f"file={disk},if=virtio,format=raw"]
        shares = [("modules", image.modules, True), ("checkout", ROOT, True)]
        shares += [("control", control, True), ("out", out, False)]
        for tag, path, fixed in shares:
            share = f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap"
            command += ["-virtfs", share + (",readonly=on" if fixed else "")]
        return command

    def _result(self, out: Path, commands: list[str], took: float, limit_s: float) -> Result:
        folder = out / "vm"
        console = _read(folder / "console")
        found = [_outcome(folder, number, text) for number, text in enumerate(commands)]
        if not (folder / "done").exists():
            done = sum(command is not None for command in found)
            last = _read(folder / f"{done:03}.out")
            why = f"was stopped after {limit_s:g} s" if took >= limit_s else "ended by itself"
            raise GuestError(
                f"the guest with kernel {self.name} {why}, "
                f"{done} of {len(commands)} commands done\n"
                f"--- last command's output\n{_tail(last)}\n--- console\n{_tail(console)}\n"
                f"--- qemu\n{_tail(_read(folder / 'qemu'))}"
            )
        return Result(
            kernel=self.name,
            release=_read(folder / "release").strip(),
            commands=[command for command in found if command is not None],
            out=out,
            console=console,
            seconds=took,
            dmesg=_read(folder / "dmesg"),
        )


def run_guest(
    kernel: str,
    commands: Sequence[str],
    options: Options | None = None,
    *,
    timeout_s: float = 300,
    out: Path | None = None,
) -> Result:
    """`Machine(kernel, options).run(commands, ...)`."""
    return Machine(kernel, options).run(commands, timeout_s=timeout_s, out=out)


def _systemd(machine: Machine) -> str:
    """How systemd mounts cgroups; our own init does it itself."""
    if not machine.systemd:
        return ""
    unified = {"v1": "0", "hybrid": "0"}.get(machine.options.cgroup, "1")
    line = f"systemd.getty_auto=no systemd.unified_cgroup_hierarchy={unified}"
    return line + (
        " systemd.legacy_systemd_cgroup_controller=1" if machine.options.cgroup == "v1" else ""
    )


def _system(image: KernelImage, icount: int | None) -> list[str]:
    thread = "multi" if icount is None else "single"
    system = {
        "amd64": ["qemu-system-x86_64", "-M", "q35"],
        "arm64": ["qemu-system-aarch64", "-M", "virt"],
    }[image.arch]
    if shutil.which(system[0]) is None:
        raise BuildError(f"no {system[0]}: scripts/setup.sh vm installs it")
    counting = [] if icount is None else ["-icount", f"shift={icount}"]
    return [*system, "-accel", f"tcg,thread={thread}", "-cpu", "max", *counting]


def _console(image: KernelImage) -> str:
    return {"amd64": "ttyS0", "arm64": "ttyAMA0"}[image.arch]


class _Follower:
    """Passes on what commands print, as it comes."""

    def __init__(self, folder: Path, show: Callable[[str], None] | None) -> None:
        self._folder, self._show = folder, show
        self._number, self._at = 0, 0

    def look(self) -> None:
        """Shows what is new."""
        while self._show is not None:
            base = self._folder / f"{self._number:03}"
            ended = base.with_suffix(".status").exists()
            path = base.with_suffix(".out")
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._at)
                    new = file.read()
                self._at += len(new)
                if new:
                    self._show(new.decode(errors="replace"))
            if not ended:
                return
            self._number, self._at = self._number + 1, 0


def _wait(process: subprocess.Popen[bytes], deadline: float, follower: _Follower) -> None:
    while time.monotonic() < deadline:
        follower.look()
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        break
    follower.look()


def _outcome(folder: Path, number: int, command: str) -> Command | None:
    base = folder / f"{number:03}"
    status = _read(base.with_suffix(".status"))
    if not status:
        return None
    begun, ended = map(float, _read(base.with_suffix(".times")).split())
    return Command(command, int(status), _read(base.with_suffix(".out")), round(ended - begun, 2))


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
