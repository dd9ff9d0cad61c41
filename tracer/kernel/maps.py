"""A BPF map as a typed table."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.errors import KernelError
from tracer.kernel import libbpf
from tracer.kernel.layouts import Layout

_BATCH = 512
NOEXIST = 1


class Table:
    """Raw access: keys and values are bytes of the sizes the object declares."""

    def __init__(self, fd: int, key_size: int, value_size: int) -> None:
        self.fd = fd
        self.key_size = key_size
        self.value_size = value_size
        self._batches = True

    def get(self, key: bytes) -> bytes | None:
        return libbpf.lookup(self.fd, key, self.value_size)

    def put(self, key: bytes, value: bytes, flags: int = 0) -> None:
        libbpf.update(self.fd, key, value, flags)

    def delete(self, key: bytes) -> bool:
        return libbpf.delete(self.fd, key)

    def take(self, key: bytes) -> bytes | None:
        """Delete; the value as it was then."""
        return libbpf.lookup_and_delete(self.fd, key, self.value_size)

    def take_all(self, at_once: int = _BATCH) -> list[tuple[bytes, bytes]]:
        """Delete all entries; what they were then. `at_once`: how many there is room for."""
        found: list[tuple[bytes, bytes]] = []
        cursor: bytes | None = None
        while True:
            some, cursor = libbpf.lookup_batch(
                self.fd, cursor, self.key_size, self.value_size, at_once, take=True
            )
            found += some
            if cursor is None:
                return found

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in batches where the kernel can; others may come and go meanwhile."""
        if self._batches:
            try:
                yield from self._by_batch()
                return
            except KernelError:
                self._batches = False
        yield from self._by_key()

    def _by_batch(self) -> Iterator[tuple[bytes, bytes]]:
        cursor: bytes | None = None
        while True:
            found, cursor = libbpf.lookup_batch(
                self.fd, cursor, self.key_size, self.value_size, _BATCH
            )
            yield from found
            if cursor is None:
                return

    def _by_key(self) -> Iterator[tuple[bytes, bytes]]:
        key = libbpf.next_key(self.fd, None, self.key_size)
        while key is not None:
            value = self.get(key)
            if value is not None:
                yield key, value
            key = libbpf.next_key(self.fd, key, self.key_size)


def rows(table: Table, key: Layout, value: Layout) -> Iterator[tuple[tuple[int, ...], ...]]:
    """(key, value) of each entry as tuples of numbers."""
    for raw_key, raw_value in table.items():
        yield key.packer.unpack(raw_key), value.packer.unpack(raw_value)
