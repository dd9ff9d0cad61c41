"""At which cgroups segments are seen: a hierarchy of plain folders, links that are noted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.errors import KernelError
from tracer.kernel import cgroup, grouptree, namespaces, placing
from tracer.kernel.grouptree import UNKNOWN, Group, GroupTree, outermost
from tracer.kernel.placing import GROUPS_MAX, Placement, Places

PORT = (4026531840, 8080)
PROGRAMS = (7, 8)


@dataclass
class Host:
    """Folders in place of cgroups; `at`: what is attached, program and path, in order."""

    root: Path
    where: dict[int, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    at: dict[int, tuple[int, str]] = field(default_factory=dict)
    most: int = 0
    told: dict[int, bytes] = field(default_factory=dict)

    def make(self, path: str) -> int:
        folder = self.root / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder.stat().st_ino

    def attach(self, program: int, fd: int) -> int:
        found = "/" + os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), self.root)
        path = "/" if found == "/." else found
        if path in self.refused:
            raise KernelError("not permitted")
        link = max(self.at, default=0) + 1
        self.at[link] = (program, path)
        self.most = max(self.most, len(self.at))
        return link

    def destroy(self, link: int) -> None:
        del self.at[link]

    def put(self, key: bytes, value: bytes) -> None:
        self.told[int.from_bytes(key, "little")] = value

    def delete(self, key: bytes) -> bool:
        return self.told.pop(int.from_bytes(key, "little"), None) is not None

    def of_process(self, tgid: int) -> Group | None:
        path = self.where.get(tgid)
        if path is None:
            return None
        return Group(self.make(path), path) if path else UNKNOWN

    @property
    def paths(self) -> list[str]:
        return sorted({path for _, path in self.at.values()})


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(
        cgroup, "open_root", lambda: os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    )
    monkeypatch.setattr(GroupTree, "of_process", made.of_process)
    monkeypatch.setattr(namespaces, "foreign", lambda _: False)
    return made


@pytest.fixture
def placement(host: Host) -> Iterator[Placement]:
    made = Placement(host.attach, host.destroy)
    made.seen = host
    made.begin(PROGRAMS)
    yield made
    made.close()
    assert host.at == {}


def test_at_the_root_until_servers_are_known(host: Host, placement: Placement) -> None:
    host.where[5] = "/a.service"
    placement.process(5)
    assert placement.places == Places(("/",), "it is not known yet where servers are")
    placement.follow()
    assert placement.places == Places(("/a.service",))
    assert sorted(host.at.values()) == [(7, "/a.service"), (8, "/a.service")]
    assert host.most == 4  # attached there before it left the root
    assert str(placement.places) == "of /a.service"


def test_nowhere_while_there_is_no_server(host: Host, placement: Placement) -> None:
    placement.follow()
    assert placement.places == Places()
    assert str(placement.places) == "of no cgroup: there is no server"
    placement.process(404)  # gone
    assert host.at == {}


def test_below_one_that_is_attached_nothing_else_is(host: Host, placement: Placement) -> None:
    placement.follow()
    host.where |= {5: "/pod/one", 6: "/pod", 7: "/podium"}
    for tgid in (5, 6, 7):
        placement.process(tgid)
    assert host.paths == ["/pod", "/podium"]
    placement.keep([5, 7], [])
    assert host.paths == ["/pod/one", "/podium"]
    placement.keep([], [])
    assert host.paths == []
    assert host.told == {}


@pytest.mark.parametrize("path", ["/", ""], ids=["in the root", "unknown"])
def test_where_the_root_is_needed(host: Host, placement: Placement, path: str) -> None:
    placement.follow()
    host.where |= {5: "/a.service", 6: path}
    placement.process(5)
    placement.process(6)
    assert host.paths == ["/"]
    expected = "a server is there" if path else "nobody can tell"
    assert (placement.places.because or "").startswith(expected)
    placement.keep([5], [])
    assert host.paths == ["/a.service"]


def test_a_rule_by_port_needs_the_root(host: Host, placement: Placement) -> None:
    placement.follow()
    host.where[5] = "/a.service"
    placement.process(5)
    placement.everywhere(True)
    assert placement.places == Places(("/",), "a rule names a server by its port alone")
    placement.everywhere(False)
    assert host.paths == ["/a.service"]


def test_the_cgroup_of_a_socket_is_found_by_its_number(host: Host, placement: Placement) -> None:
    placement.follow()
    host.where |= {1: "/init.scope", 5: "/a.service"}
    placement.process(5)
    placement.socket(PORT, host.make("/init.scope"), 5)
    inner = host.make("/user.slice/user-1000.slice/x.scope")
    placement.socket(PORT, inner)
    assert host.paths == ["/a.service", "/init.scope", "/user.slice/user-1000.slice/x.scope"]
    assert set(host.told) == {host.make(path) for path in host.paths}
    placement.keep([5], [PORT])
    assert len(host.paths) == 3
    placement.keep([5], [])
    assert host.paths == ["/a.service"]


def test_one_that_is_not_found_needs_the_root(
    host: Host, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement.follow()
    placement.socket(PORT, 999_999_999)
    assert host.paths == ["/"]
    placement.keep([], [])
    assert host.paths == []
    for number in range(5):
        host.make(f"/deep/{number}")
    monkeypatch.setattr(grouptree, "WALK_MAX", 1)
    placement.socket(PORT, host.make("/deep/3"))
    assert host.paths == ["/"]


def test_an_older_socket_is_its_process_or_who_started_that(
    host: Host, placement: Placement
) -> None:
    placement.follow()
    host.where |= {1: "/init.scope", 4: "/manager.scope", 5: "/a.service"}
    placement.listener(PORT, 5, 4)
    assert host.paths == ["/a.service", "/init.scope", "/manager.scope"]
    placement.keep([], [])
    host.where |= {1: "/", 4: "/"}  # a host without systemd
    placement.listener(PORT, 5, 4)
    assert host.paths == ["/a.service"]


def test_one_that_went_or_has_its_name_from_another(host: Host, placement: Placement) -> None:
    placement.follow()
    host.where[5] = "/a.service"
    placement.process(5)
    first = host.make("/a.service")
    (host.root / "a.service").rmdir()
    host.make("/other")  # so that the number is not given again
    host.where[6] = "/a.service"
    placement.process(6)
    assert set(host.told) == {host.make("/a.service")} != {first}
    assert host.paths == ["/a.service"]
    assert len(host.at) == 2


def test_one_that_cannot_be_attached_to(host: Host, placement: Placement) -> None:
    placement.follow()
    host.where |= {5: "/a.service", 6: "/b.service"}
    host.refused.add("/b.service")
    placement.process(5)
    placement.process(6)
    assert host.paths == ["/"]
    assert "/b.service failed: not permitted" in (placement.places.because or "")
    host.refused.clear()
    placement.keep([5, 6], [])
    assert host.paths == ["/a.service", "/b.service"]


def test_any_name_can_be_told(host: Host, placement: Placement) -> None:
    """Whoever may make groups may name them as he likes."""
    placement.follow()
    odd = os.fsdecode(b"/caf\xe9\x1b[1m.service")
    host.where[5] = odd
    placement.process(5)
    assert host.paths == [odd], "it is attached there all the same"
    assert placement.places == Places(("/caf\ufffd\x1b[1m.service",))
    assert msgspec.json.encode(placement.places.groups)
    host.refused.add(odd)
    placement.everywhere(True)
    placement.everywhere(False)
    assert "caf\ufffd" in (placement.places.because or "")


def test_too_many(host: Host, placement: Placement) -> None:
    placement.follow()
    for tgid in range(GROUPS_MAX + 1):
        host.where[tgid] = f"/{tgid}.service"
        placement.process(tgid)
    assert placement.places == Places(("/",), f"servers are in more than {GROUPS_MAX}")
    placement.keep(range(GROUPS_MAX), [])
    assert len(host.paths) == GROUPS_MAX


def test_a_storm_is_not_remembered(
    host: Host, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_REMEMBERED_MAX", 10)
    placement.follow()
    for tgid in range(100):
        host.where[tgid] = "/a.service"
        placement.process(tgid)
        placement.socket((1, tgid), host.make("/a.service"), tgid)
    assert len(placement._processes) == len(placement._ports) == 10
    placement.keep([99], [])
    assert host.paths == ["/a.service"]


def test_attached_again_it_is_where_servers_are(host: Host, placement: Placement) -> None:
    placement.follow()
    host.where[5] = "/a.service"
    placement.process(5)
    placement.close()
    assert host.paths == []
    placement.begin(PROGRAMS)
    assert host.paths == ["/a.service"]


def test_the_root_cannot_be_had(host: Host) -> None:
    host.refused.add("/")
    with pytest.raises(KernelError, match="not permitted"):
        Placement(host.attach, host.destroy).begin(PROGRAMS)
    assert host.at == {}


def test_in_a_cgroup_namespace_of_our_own(
    host: Host, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "foreign", lambda _: True)
    placement.follow()
    assert placement.places == Places(("/",), "ttftd is in a cgroup namespace of its own")


def test_it_looks_for_what_is_not_needed_a_while_after_something_went(placement: Placement) -> None:
    assert not placement.due(10**18)
    placement.went(1000)
    placement.went(10**12)
    assert not placement.due(1000 + placing._PATIENCE_NS - 1)
    assert placement.due(1000 + placing._PATIENCE_NS)
    placement.keep([], [])
    assert not placement.due(10**18)


def test_what_is_asked_before_the_begin_and_after_the_end_is_nothing(host: Host) -> None:
    one = Placement(host.attach, host.destroy)
    one.process(5)
    one.socket(PORT, 5)
    one.listener(PORT, 5, 1)
    one.follow()
    one.keep([5], [])
    assert one.places == Places()


_NAMES = st.sampled_from("abc")
_PATHS = st.lists(_NAMES, max_size=4).map(lambda names: "/" + "/".join(names))


@given(st.sets(_PATHS, max_size=12))
def test_outermost_covers_all_and_none_twice(paths: set[str]) -> None:
    groups = [Group(number, path) for number, path in enumerate(sorted(paths), 1)]
    found = outermost(groups)
    for group in groups:
        assert sum(group.within(other) for other in found) == 1
    assert set(found) <= set(groups)
