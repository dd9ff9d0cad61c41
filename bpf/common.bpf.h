/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What every program shares: options, rings, loss counters, the watch mark. */
#ifndef TTFT_COMMON_BPF_H
#define TTFT_COMMON_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "records.h"

#define INLINE static __always_inline

/* The object is compiled twice. The plain one does without what BPF learned after Linux 5.10:
 * see compat.bpf.h. Which one a kernel gets is found by trying.
 */
#ifdef TTFT_PLAIN
#define GLOBAL static __noinline
#define TRACEPOINT(name) SEC("raw_tp/" #name)
#define GET(ptr, field) BPF_CORE_READ(ptr, field)
#define GET2(ptr, field, next) BPF_CORE_READ(ptr, field, next)
#else
#define GLOBAL __noinline /* verified once, not at each call */
#define TRACEPOINT(name) SEC("tp_btf/" #name)
#define GET(ptr, field) ((ptr)->field) /* of what a program was given */
#define GET2(ptr, field, next) ((ptr)->field->next)
#endif

#define TTFT_ARCH_X86_64 1
#define TTFT_ARCH_AARCH64 2

/* User space fills this between open and load; the layout test compares it with
 * tracer/kernel/wire.py.
 */
struct ttft_options {
	u32 arch;	   /* what the object was built for; the loader checks it */
	u32 signals;	   /* bit n: report signal n */
	u64 min_file_size; /* smaller files are not followed */
	u64 span_gap_ns;   /* a longer silence ends a span */
	u64 span_max_ns;   /* a longer span is cut */
	u64 insert_gap_ns;
	u64 insert_max_ns;
	u64 token_secret; /* random: tokens must not give kernel addresses away */
	u32 rdonly_cast;  /* the kernel has bpf_rdonly_cast */
	u32 reserved;
};

/* A section of its own, so that its place in the object is known without parsing. */
SEC(".rodata.options")
const volatile struct ttft_options options = {
#if defined(__TARGET_ARCH_x86)
	.arch = TTFT_ARCH_X86_64,
#else
	.arch = TTFT_ARCH_AARCH64,
#endif
	.signals = 0xc37d9ffe, /* all but CHLD, URG and others that runtimes send to themselves */
	.min_file_size = 1 << 20,
	.span_gap_ns = 2000000,
	.span_max_ns = 100000000,
	.insert_gap_ns = 10000000,
	.insert_max_ns = 100000000,
};

struct { /* records; the loader may set another size */
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring SEC(".maps");

struct { /* struct ttft_packet with payload */
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} packets SEC(".maps");

/* Why a record was lost; the index into `lost` is kind + reason * TTFT_KIND_SLOTS. */
#define TTFT_KIND_SLOTS 32
enum ttft_loss {
	TTFT_LOSS_RING = 0,   /* no room in the ring */
	TTFT_LOSS_TABLE = 1,  /* a map was full */
	TTFT_LOSS_LOOKUP = 2, /* the memory map was locked, or a user page not there */
	TTFT_LOSS_HALF = 3,   /* the kernel left the program at the begin or end of a call out */
	TTFT_LOSS_COUNT = 4,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TTFT_KIND_SLOTS *TTFT_LOSS_COUNT);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

INLINE void count_losses(u32 kind, enum ttft_loss why, u64 many)
{
	u32 slot = kind + why * TTFT_KIND_SLOTS;
	u64 *count = bpf_map_lookup_elem(&lost, &slot);

	if (count)
		__sync_fetch_and_add(count, many);
}

INLINE void count_lost(u32 kind, enum ttft_loss why)
{
	count_losses(kind, why, 1);
}

/* Whether the reader looks often by itself now; it says so, and the first request does. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} awake SEC(".maps");

INLINE bool reader_sleeps(void)
{
	u32 zero = 0, *is_awake = bpf_map_lookup_elem(&awake, &zero);

#ifdef TTFT_PLAIN /* two may wake it then */
	if (!is_awake || *is_awake)
		return false;
	*is_awake = 1;
	return true;
#else
	return is_awake && !__sync_lock_test_and_set(is_awake, 1);
#endif
}

/* Wake the reader only when it must hurry: it drains by timer. */
INLINE u64 wake_flags(void *a_ring, bool urgent)
{
	if (urgent)
		return BPF_RB_FORCE_WAKEUP;
	if (bpf_ringbuf_query(a_ring, BPF_RB_AVAIL_DATA) >
	    bpf_ringbuf_query(a_ring, BPF_RB_RING_SIZE) / 4)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

/* Room for a record in `ring`, or NULL with the loss counted. `size` is a constant. */
#define reserve_record(kind, size)                                                                 \
	({                                                                                         \
		void *rec_ = bpf_ringbuf_reserve(&ring, size, 0);                                  \
		if (!rec_)                                                                         \
			count_lost(kind, TTFT_LOSS_RING);                                          \
		rec_;                                                                              \
	})

INLINE void submit_record(void *rec, bool urgent)
{
	bpf_ringbuf_submit(rec, wake_flags(&ring, urgent));
}

INLINE void fill_header(struct ttft_header *h, u16 kind, u64 ts_ns, u64 tgid_tid)
{
	h->ts_ns = ts_ns;
	h->tgid = tgid_tid >> 32;
	h->tid = (u32)tgid_tid;
	h->kind = kind;
	h->reserved = 0;
	h->flags = 0;
}

/* --- the watch mark --- */

struct watch {
	u64 since_ns;
};

struct { /* by tgid: the truth that the mark caches */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct watch);
} watched SEC(".maps");

INLINE bool tgid_watched(u32 tgid)
{
	return bpf_map_lookup_elem(&watched, &tgid) != NULL;
}

#ifdef TTFT_PLAIN

INLINE bool is_watched(struct task_struct *task)
{
	return tgid_watched(BPF_CORE_READ(task, tgid));
}

INLINE bool mark_watched(struct task_struct *leader)
{
	return true;
}

/* A plain number: read from it by helpers. */
INLINE struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

#else

struct { /* on group leaders; 1: watched */
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} marks SEC(".maps");

INLINE bool is_watched(struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	u32 *mark;

	if (!leader->bpf_storage) /* most processes: a look costs less than a call */
		return false;
	mark = bpf_task_storage_get(&marks, leader, NULL, 0);
	return mark && *mark;
}

INLINE bool mark_watched(struct task_struct *leader)
{
	u32 one = 1, *mark;

	mark = bpf_task_storage_get(&marks, leader, &one, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!mark)
		return false;
	*mark = 1; /* it may have been let go before */
	return true;
}

INLINE struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task_btf();
}

#endif

INLINE bool current_watched(void)
{
#ifdef TTFT_PLAIN
	return tgid_watched(bpf_get_current_pid_tgid() >> 32);
#else
	return is_watched(current_task());
#endif
}

#endif
