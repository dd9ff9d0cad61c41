"""Where the root of the cgroup v2 hierarchy is found, and when it is mounted for ttftd alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.errors import KernelError
from tracer.kernel import cgroup, features, namespaces

_V1 = "36 35 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def table(folder: Path, *lines: str) -> str:
    path = folder / "mountinfo"
    path.write_text("\n".join([_V1, *lines]) + "\n")
    return str(path)


def mount(place: Path, root: str = "/") -> str:
    place.mkdir(parents=True, exist_ok=True)
    return f"41 31 0:38 {root} {str(place).replace(' ', chr(92) + '040')} rw - cgroup2 none rw"


def test_a_mounted_root(tmp_path: Path) -> None:
    hidden, part, good = tmp_path / "hidden", tmp_path / "part", tmp_path / "with space"
    lines = [mount(hidden), mount(part, "/docker/1"), mount(good)]
    for place in (part, good):
        (place / "cgroup.procs").touch()
    assert cgroup._mount(table(tmp_path, *lines), "") == str(good)
    assert cgroup._mount(table(tmp_path, *lines[:2]), "") is None
    assert cgroup._mount(str(tmp_path / "absent"), "") is None


def test_a_root_that_another_process_has_mounted(tmp_path: Path) -> None:
    at = tmp_path / "root" / "sys"
    line = mount(at).replace(str(tmp_path / "root"), "")
    (at / "cgroup.procs").touch()
    assert cgroup._mount(table(tmp_path, line), str(tmp_path / "root")) == str(at)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "mounted", lambda: None)


def refuse(number: int, *_: object) -> int:
    raise OSError(1, "Operation not permitted")


@pytest.mark.usefixtures("nowhere")
def test_it_cannot_be_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_call", refuse)
    with pytest.raises(KernelError, match=r"not mounted, .* Operation not permitted") as caught:
        cgroup.open_root()
    assert str(caught.value.hint).endswith("mount -t cgroup2 none /sys/fs/cgroup/unified")
    lacking: list[str] = []
    monkeypatch.setattr(features, "missing_capabilities", lambda: lacking)
    fact = next(f for f in features.facts("/absent") if f.name == "cgroup v2")
    assert (fact.ok, fact.missing, fact.advice) == (False, "requests", cgroup.ADVICE)
    lacking.append("CAP_BPF")
    fact = next(f for f in features.facts("/absent") if f.name == "cgroup v2")
    assert fact.ok is None


@pytest.mark.usefixtures("nowhere")
def test_a_containers_own_part_does_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "foreign", lambda kind: kind == "cgroup")
    with pytest.raises(KernelError, match="only this container's own part"):
        cgroup.open_root()


def test_nothing_is_allowed_in_an_unprivileged_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "foreign", lambda kind: kind in ("user", "pid"))
    told = {f.name: f for f in features.facts("/absent")}
    assert told["privilege"].ok is False
    assert told["privilege"].advice == features.HOST_ADVICE
    assert told["processes"].missing == "everything"
    assert features.missing_capabilities() == ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]
