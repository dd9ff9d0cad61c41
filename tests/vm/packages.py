"""Packages of other suites and architectures, through the machine's own apt configuration."""

from __future__ import annotations

import platform
import re
import subprocess
import time
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from tests.vm import cache
from tests.vm.cache import BuildError, run

#: Package lists older than this are fetched again, seconds.
_LISTS_AGE_S = 24 * 3600
_SPLIT_KERNEL = re.compile(r"linux-(image|base|binary|modules)-\d")


@dataclass(frozen=True)
class Package:
    """A package as a suite has it now."""

    name: str
    version: str
    depends: tuple[str, ...]


@dataclass(frozen=True)
class Mirror:
    """Where this machine gets Debian from."""

    uri: str
    keyring: str | None

    def line(self, suite: str) -> str:
        """An entry of sources.list."""
        signed = f"[signed-by={self.keyring}] " if self.keyring else ""
        return f"deb {signed}{self.uri} {suite} main"


@once
def mirror() -> Mirror:
    """The mirror that this Debian machine's own packages come from."""
    release = platform.freedesktop_os_release()
    form = "$(REPO_URI)|$(RELEASE)|$(CODENAME)|$(COMPONENT)|$(SIGNED_BY)"
    targets = run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    for line in targets.splitlines():
        uri, suite, codename, component, keyring = line.split("|")
        own = release.get("VERSION_CODENAME")
        if component == "main" and own in (suite, codename) and suite == suite.partition("-")[0]:
            return Mirror(uri, keyring if keyring.startswith("/") else None)
    raise BuildError(
        f"apt here has no Debian mirror for {release.get('PRETTY_NAME')}: "
        "the guests are made from the machine's own package sources"
    )


class Suite:
    """The packages of one suite and architecture."""

    def __init__(self, suite: str, arch: str) -> None:
        self.suite, self.arch = suite, arch
        self._folder = cache.root() / "apt" / f"{suite}-{arch}"
        self._refresh()

    def _options(self) -> list[str]:
        at = self._folder
        settings = {
            "Dir::Etc::SourceList": at / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State": at / "state",
            "Dir::State::status": at / "status",
            "Dir::Cache": at / "cache",
            "APT::Architecture": self.arch,
            "APT::Architectures": self.arch,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        return [text for name, value in settings.items() for text in ("-o", f"{name}={value}")]

    def _refresh(self) -> None:
        stamp, sources = self._folder / "fetched", mirror().line(self.suite) + "\n"
        with cache.lock(f"apt-{self.suite}-{self.arch}"):
            fresh = stamp.exists() and time.time() - stamp.stat().st_mtime < _LISTS_AGE_S
            if fresh and (self._folder / "sources.list").read_text() == sources:
                return
            for part in ("state/lists/partial", "cache/archives/partial"):
                (self._folder / part).mkdir(parents=True, exist_ok=True)
            (self._folder / "sources.list").write_text(sources)
            (self._folder / "status").touch()
            try:
                run("apt-get", *self._options(), "--error-on=any", "update")
            except BuildError as error:
                raise BuildError(
                    f"the package list of {self.suite} cannot be had: {error}"
                ) from None
            stamp.touch()

    def find(self, *names: str) -> list[Package]:
        """The newest of each of these names."""
        asked = ["show", "--no-all-versions", *names]
        try:
            text = run("apt-cache", *self._options(), *asked)
        except BuildError:
            wanted = " ".join(names)
            raise BuildError(f"{self.suite} does not have {wanted} for {self.arch}") from None
        return [_package(part) for part in text.strip().split("\n\n")]

    def kernel(self, package: str) -> list[Package]:
        """The packages that a kernel's package stands for."""
        found: dict[str, Package] = {}
        waiting = [package]
        while waiting:
            found |= {one.name: one for one in self.find(*waiting)}
            needed = {name for one in found.values() for name in one.depends}
            waiting = sorted(filter(_SPLIT_KERNEL.match, needed - found.keys()))
        return [found[name] for name in sorted(found)]

    def download(self, packages: list[Package], folder: Path) -> list[Path]:
        """Fetches them; apt checks the signatures' chain."""
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{package.name}={package.version}" for package in packages]
        try:
            run("apt-get", *self._options(), "download", *names, cwd=folder)
        except BuildError as error:
            raise BuildError(f"cannot fetch {' '.join(names)} of {self.suite}: {error}") from None
        return sorted(folder.glob("*.deb"))


def _package(text: str) -> Package:
    """A package from a stanza of the list."""
    fields = dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE))
    depends = re.split(r"[,|]", fields.get("Depends", ""))
    names = tuple(word.split()[0].partition(":")[0] for word in depends if word.strip())
    return Package(fields["Package"], fields["Version"], names)


def unpack(deb: Path, root: Path) -> None:
    """Puts a package's files into a tree whose /usr is merged."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as source:
        command = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
        done = subprocess.run(command, stdin=source.stdout, check=False)
    if done.returncode or source.returncode:
        raise BuildError(f"cannot unpack {deb.name}")
