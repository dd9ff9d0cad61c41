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
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
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

    def line(self, suite: str, section: str = "main") -> str:
        """An entry of sources.list."""
        signed = f"[signed-by={self.keyring}] " if self.keyring else ""
        return f"deb {signed}{self.uri} {suite} {section}"


@once
def mirror() -> Mirror:
    """The mirror that this Debian machine's own packages come from."""
    release = platform.freedesktop_os_release()
    found = find_mirror(run("apt-get", "update", "--print-uris"), release.get("VERSION_CODENAME"))
    if found is None:
        raise BuildError(
            f"apt has no Debian mirror here ({release.get('PRETTY_NAME')}): "
            "the guests are made from the machine's own package sources"
        )
    return Mirror(found, str(_KEYRING) if _KEYRING.exists() else None)


def find_mirror(uris: str, codename: str | None) -> str | None:
    """The first among apt's list of files that has the section `main` of this release."""
    found = re.search(rf"^'(\S+?)/dists/{codename}/main/binary-", uris, re.MULTILINE)
    return found[1] if found else None


class Suite:
    """The packages of one suite and architecture. `section`: of the mirror, such as non-free."""

    def __init__(self, suite: str, arch: str, section: str = "main") -> None:
        self.suite, self.arch, self._section = suite, arch, section
        self._name = f"{suite}-{arch}" if section == "main" else f"{suite}-{section}-{arch}"
        self._folder = cache.root() / "apt" / self._name
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
        """Fetches the list, if that is a day old; without a network, an old one must do."""
        stamp = self._folder / "fetched"
        sources = mirror().line(self.suite, self._section) + "\n"
        with cache.lock(f"apt-{self._name}"):
            there = stamp.exists() and (self._folder / "sources.list").read_text() == sources
            if there and time.time() - stamp.stat().st_mtime < _LISTS_AGE_S:
                return
            for part in ("state/lists/partial", "cache/archives/partial", "answers"):
                (self._folder / part).mkdir(parents=True, exist_ok=True)
            (self._folder / "sources.list").write_text(sources)
            (self._folder / "status").touch()
            try:
                run("apt-get", *self._options(), "--error-on=any", "update")
            except BuildError as error:
                if not there:
                    stamp.unlink(missing_ok=True)
                    raise BuildError(
                        f"cannot get the package list of {self.suite}: {error}"
                    ) from None
                cache.say(f"cannot get a new package list of {self.suite}, the old one is used")
                return
            for answer in (self._folder / "answers").iterdir():
                answer.unlink()
            stamp.touch()

    def find(self, *names: str) -> list[Package]:
        """The newest of each of these names."""
        answer = self._folder / "answers" / cache.digest(*names)
        try:  # asking apt takes most of a second
            text = answer.read_text()
        except FileNotFoundError:
            text = self._ask(names)
            cache.write(answer, text)
        return [_package(part) for part in text.strip().split("\n\n")]

    def _ask(self, names: tuple[str, ...]) -> str:
        try:
            return run("apt-cache", *self._options(), "show", "--no-all-versions", *names)
        except BuildError:
            wanted = " ".join(names)
            raise BuildError(f"{self.suite} does not have {wanted} for {self.arch}") from None

    def kernel(self, package: str) -> list[Package]:
        """The packages that a kernel's package stands for."""
        return self.closure(package, _SPLIT_KERNEL)

    def closure(self, package: str, follow: re.Pattern[str]) -> list[Package]:
        """A package and what it depends on, as far as the names match."""
        found: dict[str, Package] = {}
        waiting = [package]
        while waiting:
            found |= {one.name: one for one in self.find(*waiting)}
            needed = {name for one in found.values() for name in one.depends}
            waiting = sorted(filter(follow.match, needed - found.keys()))
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
