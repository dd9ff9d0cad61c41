"""The program that sees bytes taken is on while something is asked."""

from __future__ import annotations

import time

from tracer.errors import KernelError
from tracer.kernel.takes import QUIET_NS, Takes


class Noted:
    def __init__(self) -> None:
        self.turns: list[str] = []
        self.refuses = False

    def attach(self) -> None:
        if self.refuses:
            raise KernelError("not now")
        self.turns.append("on")

    def detach(self) -> None:
        self.turns.append("off")


def takes(noted: Noted) -> Takes:
    return Takes(noted.attach, noted.detach)


def test_it_stays_where_nobody_says_that_it_may_go() -> None:
    noted = Noted()
    one = takes(noted)
    one.stir()
    one.rest(time.monotonic_ns() + 10 * QUIET_NS)
    assert (one.on, noted.turns) == (True, [])


def test_it_comes_with_a_request_and_goes_when_there_was_none_for_a_while() -> None:
    noted = Noted()
    one = takes(noted)
    one.come_and_go()
    assert (one.on, noted.turns) == (False, ["off"])
    one.stir()
    one.stir()
    assert (one.on, noted.turns) == (True, ["off", "on"])
    one.rest(time.monotonic_ns() + QUIET_NS - 1_000_000_000)
    assert one.on
    one.rest(time.monotonic_ns() + QUIET_NS + 1)
    assert (one.on, noted.turns) == (False, ["off", "on", "off"])


def test_what_is_asked_while_we_start_keeps_it() -> None:
    noted = Noted()
    one = takes(noted)
    one.stir()
    one.come_and_go()
    assert (one.on, noted.turns) == (True, [])


def test_where_it_cannot_come_now_the_next_request_tries_again() -> None:
    noted = Noted()
    one = takes(noted)
    one.come_and_go()
    noted.refuses = True
    one.stir()
    assert not one.on
    noted.refuses = False
    one.stir()
    assert one.on


def test_once_closed_it_comes_no_more() -> None:
    noted = Noted()
    one = takes(noted)
    one.come_and_go()
    one.close()
    one.stir()
    assert noted.turns == ["off"]
