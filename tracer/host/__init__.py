"""What user space reads of the host: /proc, mounts, sockets, page cache residency."""
