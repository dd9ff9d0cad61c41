/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Calls of watched processes into the drivers of accelerators: open, ioctl, mmap, poll, close.
 *
 * A device is told by the number of its node, whatever its path or mount namespace. Which devices,
 * and what an ioctl means, user space says: `device_nodes` and `device_calls`, out of
 * tracer/devices/devicecalls.toml. Like calls of a thread on a device are one run; a call that
 * takes long, and the first open, are told by themselves. Work that is submitted by a store to
 * mapped memory is no call, and not seen.
 */
#ifndef TTFT_DEVICES_BPF_H
#define TTFT_DEVICES_BPF_H

#include "drivers.bpf.h"

#define DEVICE_SLOW_NS 10000000ull  /* such a call is a record of its own */
#define DEVICE_GAP_NS 10000000ull   /* a longer silence ends a run */
#define DEVICE_MAX_NS 1000000000ull /* a longer run is cut */
#define POLLED 8		    /* descriptors of a poll that are looked at */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ttft_device_run_key);
	__type(value, struct ttft_device_run);
} device_runs SEC(".maps");

struct { /* which processes opened which devices; since when the process is watched */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ttft_device_holder);
	__type(value, u64);
} device_holders SEC(".maps");

struct device_event {
	u64 start_ns, end_ns, bytes;
	u64 tgid_tid;
	u32 rdev, driver, what, number, failed, flags;
};

INLINE void emit_device(const struct ttft_device_run *run, u32 tid, u32 rdev, u32 what, u32 flags)
{
	struct ttft_device *rec;

	if (!run->count)
		return;
	rec = reserve_record(TTFT_DEVICE, sizeof(*rec));
	if (!rec)
		return;
	fill_header(&rec->h, TTFT_DEVICE, run->start_ns, (u64)run->tgid << 32 | tid);
	rec->h.flags = flags;
	rec->end_ns = run->end_ns;
	rec->busy_ns = run->busy_ns;
	rec->bytes = run->bytes;
	rec->rdev = rdev;
	rec->driver = run->driver;
	rec->count = run->count;
	rec->failed = run->failed;
	rec->what = what;
	rec->number = run->number;
	submit_record(rec, flags & (TTFT_DEVICE_FIRST | TTFT_DEVICE_UNKNOWN));
}

INLINE void begin_device_run(struct ttft_device_run *run, const struct device_event *e)
{
	run->tgid = e->tgid_tid >> 32;
	run->start_ns = e->start_ns;
	run->end_ns = e->end_ns;
	run->busy_ns = e->end_ns - e->start_ns;
	run->bytes = e->bytes;
	run->driver = e->driver;
	run->count = 1;
	run->failed = e->failed;
	run->number = e->number;
}

INLINE bool run_continues(const struct ttft_device_run *run, const struct device_event *e)
{
	return run->tgid == (u32)(e->tgid_tid >> 32) && run->driver == e->driver &&
	       e->start_ns - run->end_ns <= DEVICE_GAP_NS &&
	       e->end_ns - run->start_ns <= DEVICE_MAX_NS;
}

INLINE void add_device_event(const struct device_event *e)
{
	struct ttft_device_run_key key = {
		.tid = (u32)e->tgid_tid,
		.rdev = e->rdev,
		.what = e->what,
	};
	struct ttft_device_run *run, fresh = {};

	begin_device_run(&fresh, e);
	if (e->flags || e->end_ns - e->start_ns >= DEVICE_SLOW_NS) {
		emit_device(&fresh, key.tid, key.rdev, key.what, e->flags | TTFT_DEVICE_SLOW);
		return;
	}
	run = bpf_map_lookup_elem(&device_runs, &key);
	if (!run) {
		/* No room: told by itself, which also has the reader make room. */
		if (bpf_map_update_elem(&device_runs, &key, &fresh, BPF_NOEXIST))
			emit_device(&fresh, key.tid, key.rdev, key.what, 0);
		return;
	}
	run->begin++;
	barrier();
	if (run_continues(run, e)) {
		run->end_ns = e->end_ns;
		run->busy_ns += e->end_ns - e->start_ns;
		run->bytes += e->bytes;
		run->count++;
		run->failed += e->failed;
		run->number = e->number;
	} else {
		emit_device(run, key.tid, key.rdev, key.what, 0);
		begin_device_run(run, e);
	}
	barrier();
	run->end = run->begin;
}

/* Whether the process opened this device before. */
INLINE bool opened_before(u32 tgid, u32 rdev)
{
	struct ttft_device_holder key = {.tgid = tgid, .rdev = rdev};
	struct watch *watch = bpf_map_lookup_elem(&watched, &tgid);
	u64 since = watch ? watch->since_ns : 0;
	u64 *known = bpf_map_lookup_elem(&device_holders, &key);

	if (known && *known == since)
		return true;
	bpf_map_update_elem(&device_holders, &key, &since, BPF_ANY);
	return false;
}

/* --- entry and return --- */

INLINE bool is_poll(long nr)
{
	return nr == SYS_POLL || nr == SYS_PPOLL;
}

#define LOW(nr) ((u64)(nr) < 64 ? 1ull << ((nr)&63) : 0)

/* Every system call of everyone asks this: most numbers are told by one bit. */
INLINE bool is_device_call(long nr)
{
	const u64 low = LOW(SYS_IOCTL) | LOW(SYS_MMAP) | LOW(SYS_CLOSE) | LOW(SYS_POLL) |
			LOW(SYS_OPEN) | LOW(SYS_OPENAT);

	if ((u64)nr < 64)
		return low >> nr & 1;
	return nr == SYS_PPOLL || nr == SYS_OPENAT || nr == SYS_OPENAT2 || nr == SYS_MMAP;
}

struct polled {
	s32 fd;
	u32 events;
};

/* The first device among the descriptors of a poll. */
INLINE struct ttft_device_node *polled_node(struct task_struct *task, u64 list, u64 count,
					    u32 *rdev)
{
	struct ttft_device_node *node;
	struct polled one = {};

	for (u32 i = 0; i < POLLED; i++) {
		if (i >= count)
			return NULL;
		if (bpf_probe_read_user(&one, sizeof(one), (void *)(list + i * sizeof(one))))
			return NULL;
		node = node_of_fd(task, one.fd, rdev);
		if (node)
			return node;
	}
	return NULL;
}

INLINE struct ttft_device_node *called_node(struct task_struct *task, long nr,
					    const struct syscall_args *args, u32 *rdev)
{
	if (is_poll(nr))
		return polled_node(task, args->a0, args->a1, rdev);
	if (nr == SYS_MMAP)
		return args->a3 & MAP_ANONYMOUS ? NULL : node_of_fd(task, (s32)args->a4, rdev);
	return node_of_fd(task, (s32)args->a0, rdev);
}

INLINE u32 plain_what(long nr)
{
	if (nr == SYS_MMAP)
		return TTFT_DEVICE_MAP;
	return is_poll(nr) ? TTFT_DEVICE_SYNC : TTFT_DEVICE_FREE;
}

INLINE int enter_device(const struct syscall_args *args, long nr, u32 now)
{
	struct task_struct *task = current_task();
	struct ttft_device_node *node = NULL;
	struct device_call *call;
	u32 rdev = 0;

	if (!is_watched(task) || is_compat_syscall(task))
		return 0;
	if (!is_open(nr)) { /* of what is opened, only its end tells */
		node = called_node(task, nr, args, &rdev);
		if (!node)
			return 0;
	}
	call = current_device_call(task);
	if (!call)
		return 0;
	call->rdev = rdev;
	call->driver = node ? node->driver : 0;
	call->number = 0;
	call->bytes = 0;
	call->late = 0;
	if (node && nr == SYS_IOCTL) {
		classify(call, node, (u32)args->a1, args->a2);
	} else {
		call->what = plain_what(nr);
		call->bytes = nr == SYS_MMAP ? args->a1 : 0;
	}
	call->arming = now;
	call->call = nr + 1;
	call->enter_ns = bpf_ktime_get_ns();
	return 0;
}

/* What was opened: a device, or one that may be one and is not known. */
INLINE bool opened_device(struct task_struct *task, struct device_event *e, long fd)
{
	struct ttft_device_node *node = node_of_fd(task, (s32)fd, &e->rdev);

	if (!e->rdev || (!node && is_plain_device(e->rdev)))
		return false;
	e->what = TTFT_DEVICE_OPEN;
	e->driver = node ? node->driver : 0;
	if (!opened_before(e->tgid_tid >> 32, e->rdev))
		e->flags = TTFT_DEVICE_FIRST | (node ? 0 : TTFT_DEVICE_UNKNOWN);
	return node || e->flags;
}

INLINE int leave_device(struct task_struct *task, long nr, long ret)
{
	struct device_call *call = known_device_call(task);
	struct device_event e = {};
	bool begun;

	if (!call)
		return 0;
	begun = call->call == (u32)nr + 1 && call->arming == arming(ARMING_DEVICES);
	call->call = 0;
	if (!begun)
		return 0;
	e.end_ns = bpf_ktime_get_ns();
	e.start_ns = call->enter_ns;
	e.tgid_tid = bpf_get_current_pid_tgid();
	e.failed = ret < 0 && ret >= -4095;
	if (is_open(nr)) {
		if (e.failed || !opened_device(task, &e, ret))
			return 0;
	} else {
		e.rdev = call->rdev;
		e.driver = call->driver;
		e.what = call->what;
		e.number = call->number;
		if (!e.failed && call->late)
			read_argument(&call->bytes, sizeof(call->bytes), call->late);
		e.bytes = e.failed || call->bytes >= DEVICE_BYTES_MAX ? 0 : call->bytes;
	}
	add_device_event(&e);
	return 0;
}

INLINE int on_device_enter(struct pt_regs *regs, long nr)
{
	struct syscall_args args;
	u32 now;

	if (!is_device_call(nr))
		return 0;
	now = arming(ARMING_DEVICES);
	if (!(now & 1)) /* these programs are there for files alone */
		return 0;
	args = syscall_args(regs);
	return enter_device(&args, nr, now);
}

INLINE int on_device_leave(long nr, long ret)
{
	return is_device_call(nr) ? leave_device(current_task(), nr, ret) : 0;
}

#endif
