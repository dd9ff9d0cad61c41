/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Devices of accelerators, told by number, and what calls into their drivers mean. */
#ifndef TTFT_DRIVERS_BPF_H
#define TTFT_DRIVERS_BPF_H

#include "files.bpf.h"

#define DEVICE_BYTES_MAX (1ull << 48)

#define S_IFCHR 0020000

#if defined(__TARGET_ARCH_x86)
#define SYS_CLOSE 3
#define SYS_POLL 7
#define SYS_IOCTL 16
#define SYS_PPOLL 271
#elif defined(__TARGET_ARCH_arm64)
#define SYS_POLL -2 /* arm64 never had it */
#define SYS_IOCTL 29
#define SYS_CLOSE 57
#define SYS_PPOLL 73
#endif

struct { /* by number of the device */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct ttft_device_node);
} device_nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, struct ttft_device_key);
	__type(value, struct ttft_device_spec);
} device_calls SEC(".maps");

struct device_call { /* the call that a thread is in */
	u64 enter_ns;
	u64 bytes;
	u64 late; /* where its size will be; 0: nowhere */
	u32 call; /* number + 1; 0: none on a device */
	u32 rdev;
	u32 driver;
	u32 what;
	u32 number; /* of an ioctl */
	u32 arming; /* in which it began */
};

#ifdef TTFT_PLAIN

struct { /* by thread id */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct device_call);
} device_threads SEC(".maps");

INLINE struct device_call *known_device_call(struct task_struct *task)
{
	u32 tid = bpf_get_current_pid_tgid();

	return bpf_map_lookup_elem(&device_threads, &tid);
}

INLINE struct device_call *current_device_call(struct task_struct *task)
{
	struct device_call *call = known_device_call(task), none = {};
	u32 tid = bpf_get_current_pid_tgid();

	if (call)
		return call;
	if (bpf_map_update_elem(&device_threads, &tid, &none, BPF_ANY))
		count_lost(TTFT_DEVICE, TTFT_LOSS_TABLE);
	return bpf_map_lookup_elem(&device_threads, &tid);
}

#else

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct device_call);
} device_threads SEC(".maps");

INLINE struct device_call *known_device_call(struct task_struct *task)
{
	return task->bpf_storage ? bpf_task_storage_get(&device_threads, task, NULL, 0) : NULL;
}

INLINE struct device_call *current_device_call(struct task_struct *task)
{
	struct device_call *call =
		bpf_task_storage_get(&device_threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!call)
		count_lost(TTFT_DEVICE, TTFT_LOSS_TABLE);
	return call;
}

#endif

/* --- which device --- */

INLINE u32 rdev_of(u64 ptr)
{
	struct file *file = (void *)ptr;
	struct inode *inode;

#ifndef TTFT_PLAIN
	if (options.rdonly_cast) {
		inode = CAST(file, file)->f_inode;
		return (inode->i_mode & S_IFMT) == S_IFCHR ? inode->i_rdev : 0;
	}
#endif
	inode = BPF_CORE_READ(file, f_inode);
	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFCHR)
		return 0;
	return BPF_CORE_READ(inode, i_rdev);
}

INLINE struct ttft_device_node *node_of(u32 rdev)
{
	struct ttft_device_node *node = bpf_map_lookup_elem(&device_nodes, &rdev);
	u32 any = rdev | TTFT_ANY_MINOR;

	return node ? node : bpf_map_lookup_elem(&device_nodes, &any);
}

/* The device behind a descriptor, NULL for all else. */
INLINE struct ttft_device_node *node_of_fd(struct task_struct *task, s32 fd, u32 *rdev)
{
	u64 ptr = file_of_fd(task, fd);

	*rdev = ptr ? rdev_of(ptr) : 0;
	return *rdev ? node_of(*rdev) : NULL;
}

/* Memory, terminals and the like, which everyone opens. */
INLINE bool is_plain_device(u32 rdev)
{
	u32 major = rdev >> 20;

	return major == 1 || major == 4 || major == 5 || (major >= 136 && major <= 143);
}

/* --- what a call means --- */

struct wrapped_call {
	u32 number;
	u32 size;
	u64 argument;
};

INLINE bool read_argument(void *to, u32 size, u64 from)
{
	if (!bpf_probe_read_user(to, size, (void *)from))
		return true;
	count_lost(TTFT_DEVICE, TTFT_LOSS_LOOKUP);
	return false;
}

INLINE struct ttft_device_spec *spec_of(struct ttft_device_key *key, u64 *argument)
{
	struct ttft_device_spec *spec = bpf_map_lookup_elem(&device_calls, key), *finer;
	struct wrapped_call inner = {};
	struct ttft_device_key sub = {.driver = key->driver, .has_sub = 1};

	if (spec && spec->flags & TTFT_SPEC_WRAPS) {
		if (!read_argument(&inner, sizeof(inner), *argument))
			return spec;
		key->number = inner.number & 0xff;
		*argument = inner.argument;
		spec = bpf_map_lookup_elem(&device_calls, key);
	}
	if (!spec || !spec->sub_mask)
		return spec;
	if (!read_argument(&sub.sub, sizeof(sub.sub), *argument + spec->sub_offset))
		return spec;
	sub.sub &= spec->sub_mask;
	sub.number = key->number;
	finer = bpf_map_lookup_elem(&device_calls, &sub);
	return finer ? finer : spec;
}

INLINE u64 bytes_of(const struct ttft_device_spec *spec, u64 argument)
{
	u64 value = 0, from = argument;

	if (spec->size == TTFT_SIZE_NONE)
		return 0;
	if (spec->size == TTFT_SIZE_POINTED) {
		if (!read_argument(&from, sizeof(from), argument + spec->through) || !from)
			return 0;
	}
	if (!read_argument(&value, spec->size == TTFT_SIZE_U32 ? 4 : 8, from + spec->offset))
		return 0;
	value += spec->plus;
	return value < DEVICE_BYTES_MAX ? value : 0; /* all there is: no size */
}

INLINE void classify(struct device_call *call, const struct ttft_device_node *node, u32 cmd,
		     u64 argument)
{
	bool typed = !node->type || (cmd >> 8 & 0xff) == node->type;
	struct ttft_device_key key = {
		.driver = node->driver,
		.number = node->whole || !typed ? cmd : cmd & 0xff,
	};
	struct ttft_device_spec *spec = spec_of(&key, &argument);

	call->number = key.number;
	call->what = spec ? spec->what : TTFT_DEVICE_OTHER;
	if (spec && spec->flags & TTFT_SPEC_LATE)
		call->late = argument + spec->offset;
	else if (spec)
		call->bytes = bytes_of(spec, argument);
}

#endif
