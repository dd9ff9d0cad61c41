"""What is told twice counts once."""

from __future__ import annotations

from tracer.once import Once


def test_each_once_and_only_so_many_are_remembered() -> None:
    once = Once(3)
    assert [n for n in (1, 2, 1, 3, 2, 4, 4) if once.first(n)] == [1, 2, 3, 4]
    assert once.first(1), "forgotten by now"
