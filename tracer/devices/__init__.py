"""Calls of watched processes into the drivers of accelerators: which devices, what a call means.

From the kernel to the answer:

- `devicecalls.toml`, read by `table.py`, is the one table: drivers, how their nodes are told, and
  what each ioctl is by its number, by its object class or function, and through the call it
  wraps. `nodes.py` finds the nodes of this host. `watch.py` puts both into the maps
  `device_nodes` and `device_calls`, looks again when programs start or end and when a device is
  opened that the kernel does not know, and has the probe group `devices` attached beside `files`
  as long as there is any device: without one nothing is attached.
- `bpf/devices.bpf.h` sees open, ioctl, mmap, poll and close on those nodes (`inode.i_rdev`, so
  the path and the container do not matter) and gives `struct ttft_device` (kind `device`). Like
  calls of one thread on one device are a run, cut after 10 ms of silence or a second; so there
  are at most a hundred records a second for each, whatever the rate. A call of 10 ms or more, and
  the first open of a device by a process, is a record of its own at once. What still grows is in
  the map `device_runs`.
- `runs.py` makes `DeviceCall` records of both. Count, time in the call and bytes (where an
  argument tells, of calls that succeeded) are exact; `number` is that of the last ioctl.
- An ioctl that the table does not have is `other`; `open`, `map` (mmap), `sync` (poll) and
  `free` (close) of a device need no table.

Kernel launches, copies and events that spin are submitted by a store to mapped memory on most
drivers: no call shows them. Counts here are of driver calls, not of the work of the device.

By hand (tests, a guest): `Kernel.open()`, `DeviceWatch(kernel, table(), globs)`, its
`refresh()`, `kernel.watch(pid)`, `kernel.attach("devices")`; then `watch.record(raw)` of each
`RawDevice` that `kernel.drain()` gives, and `watch.sweep(now_ns)` for runs that still grow.
"""
