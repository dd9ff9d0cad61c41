// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Entries of functions in user libraries. What a call means stands in `call_specs`, which user
 * space fills from its catalogue; the cookie of an attachment is the row. Nothing is attached to
 * returns: that crashes sandboxed processes on some kernels. How long a call took is bounded by
 * the next entry of its thread, or the thread's end.
 */
#include "compat.bpf.h"
#include "maps.h"

#define RUN_MAX_NS 1000000000ull /* a longer run is cut */
#define ARRAY_MAX 32		 /* elements of an array that are summed */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TTFT_CALLS);
	__type(key, u32);
	__type(value, struct ttft_call_spec);
} call_specs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct ttft_run_key);
	__type(value, struct ttft_run_state);
} call_runs SEC(".maps");

struct caller { /* the last call of a thread */
	u64 last_ns;
	u32 call;
	u32 known;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct caller);
} callers SEC(".maps");

/* What a program at a function's first instruction sees of its caller. */
struct entry {
	u64 args[6];
	u64 stack;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs___user {
	unsigned long r9, r8, cx, dx, si, di, sp;
} __attribute__((preserve_access_index));

INLINE void read_entry(void *ctx, struct entry *e)
{
	struct pt_regs___user *regs = ctx;

	e->args[0] = regs->di;
	e->args[1] = regs->si;
	e->args[2] = regs->dx;
	e->args[3] = regs->cx;
	e->args[4] = regs->r8;
	e->args[5] = regs->r9;
	e->stack = regs->sp;
}

/* A struct passed by value after a pointer lies on the stack, above the return address. */
INLINE u64 by_value(const struct entry *e)
{
	return e->stack + 8;
}
#else
INLINE void read_entry(void *ctx, struct entry *e)
{
	struct user_pt_regs *regs = ctx;

	e->args[0] = regs->regs[0];
	e->args[1] = regs->regs[1];
	e->args[2] = regs->regs[2];
	e->args[3] = regs->regs[3];
	e->args[4] = regs->regs[4];
	e->args[5] = regs->regs[5];
	e->stack = 0;
}

/* A struct of more than 16 bytes is passed by reference to a copy. */
INLINE u64 by_value(const struct entry *e)
{
	return e->args[1];
}
#endif

/* Arguments count from 1. */
INLINE u64 argument(const struct entry *e, u32 nth)
{
	switch (nth) {
	case 1:
		return e->args[0];
	case 2:
		return e->args[1];
	case 3:
		return e->args[2];
	case 4:
		return e->args[3];
	case 5:
		return e->args[4];
	case 6:
		return e->args[5];
	}
	return 0;
}

INLINE u64 pointed(u64 address)
{
	u64 value = 0;

	if (bpf_probe_read_user(&value, sizeof(value), (void *)address)) {
		count_lost(TTFT_CALL, TTFT_LOSS_LOOKUP);
		return 0;
	}
	return value;
}

INLINE u64 summed(const struct ttft_call_spec *spec, u64 address, u64 count)
{
	u64 sum = 0;

	for (u32 i = 0; i < ARRAY_MAX; i++) {
		if (i >= count)
			return sum;
		sum += pointed(address + (u64)i * spec->stride + spec->offset);
	}
	if (count > ARRAY_MAX)
		count_lost(TTFT_CALL, TTFT_LOSS_LOOKUP);
	return sum;
}

INLINE u64 measure(const struct ttft_call_spec *spec, const struct entry *e)
{
	u64 value = argument(e, spec->arg), other = argument(e, spec->other);

	switch (spec->measure) {
	case TTFT_MEASURE_ARG:
		return value;
	case TTFT_MEASURE_U32:
		return (u32)value;
	case TTFT_MEASURE_PRODUCT:
		return value * other;
	case TTFT_MEASURE_POINTED:
		return pointed(value + spec->offset);
	case TTFT_MEASURE_ARRAY:
		return summed(spec, value, (u32)other);
	case TTFT_MEASURE_BATCH:
		return (u32)pointed(by_value(e) + spec->offset);
	}
	return 0;
}

INLINE void emit_call(const struct ttft_run_key *key, const struct ttft_run_state *run)
{
	struct ttft_call *rec = reserve_record(TTFT_CALL, sizeof(*rec));

	if (!rec)
		return;
	fill_header(&rec->h, TTFT_CALL, run->start_ns, (u64)run->tgid << 32 | key->tid);
	rec->end_ns = run->end_ns;
	rec->follow_ns = run->follow_ns;
	rec->last_ns = run->last_ns;
	rec->amount = run->amount;
	rec->count = run->count;
	rec->call = key->call;
	submit_record(rec, false);
}

/* The thread does something else now: the call before was over. */
INLINE struct ttft_run_state *settle(const struct caller *c, u32 tid, u64 now)
{
	struct ttft_run_key key = {.tid = tid, .call = c->call};
	struct ttft_run_state *run = bpf_map_lookup_elem(&call_runs, &key);

	if (!run)
		return NULL;
	run->begin++;
	barrier();
	run->last_ns = now - c->last_ns;
	run->follow_ns += run->last_ns;
	barrier();
	run->end = run->begin;
	return run;
}

INLINE bool continues(const struct ttft_run_state *run, const struct ttft_call_spec *spec, u32 tgid,
		      u64 amount, u64 now)
{
	if (run->tgid != tgid || now - run->end_ns > spec->gap_ns ||
	    now - run->start_ns > RUN_MAX_NS)
		return false;
	return spec->measure != TTFT_MEASURE_BATCH || run->each == amount;
}

INLINE void add_call(const struct ttft_run_key *key, const struct ttft_call_spec *spec, u32 tgid,
		     u64 amount, u64 now)
{
	struct ttft_run_state fresh = {.tgid = tgid,
				       .start_ns = now,
				       .end_ns = now,
				       .amount = amount,
				       .each = amount,
				       .count = 1};
	struct ttft_run_state *run = bpf_map_lookup_elem(&call_runs, key);

	if (!run) {
		if (bpf_map_update_elem(&call_runs, key, &fresh, BPF_NOEXIST) == -E2BIG)
			count_lost(TTFT_CALL, TTFT_LOSS_TABLE);
		return;
	}
	if (!continues(run, spec, tgid, amount, now)) {
		emit_call(key, run);
		fresh.begin = fresh.end = run->begin + 1;
		run->begin++;
		barrier();
		run->tgid = tgid;
		run->start_ns = run->end_ns = now;
		run->follow_ns = run->last_ns = 0;
		run->amount = run->each = amount;
		run->count = 1;
		barrier();
		run->end = run->begin;
		return;
	}
	run->begin++;
	barrier();
	run->end_ns = now;
	run->amount += amount;
	run->count++;
	barrier();
	run->end = run->begin;
}

INLINE int on_call(void *ctx, u32 call)
{
	struct task_struct *task = current_task();
	struct ttft_run_key key = {.call = call};
	struct ttft_call_spec *spec;
	struct caller *c;
	struct entry e;
	u64 now, id;

	if (!is_watched(task))
		return 0;
	spec = bpf_map_lookup_elem(&call_specs, &call);
	if (!spec)
		return 0;
	now = bpf_ktime_get_ns();
	id = bpf_get_current_pid_tgid();
	key.tid = (u32)id;
	c = bpf_task_storage_get(&callers, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!c) {
		count_lost(TTFT_CALL, TTFT_LOSS_TABLE);
		return 0;
	}
	if (c->known)
		settle(c, key.tid, now);
	c->known = 0;
	read_entry(ctx, &e);
	if (spec->when_arg && (u32)argument(&e, spec->when_arg) != spec->when_value)
		return 0;
	c->known = 1;
	c->call = call;
	c->last_ns = now;
	add_call(&key, spec, id >> 32, measure(spec, &e), now);
	return 0;
}

/* A thread made for one call, a compilation, ends after it. */
INLINE int on_thread_end(struct task_struct *task)
{
	struct caller *c = bpf_task_storage_get(&callers, task, NULL, 0);
	struct ttft_run_state *run;
	struct ttft_run_key key;

	if (!c || !c->known)
		return 0;
	key = (struct ttft_run_key){.tid = task->pid, .call = c->call};
	run = settle(c, task->pid, bpf_ktime_get_ns());
	if (run) {
		emit_call(&key, run);
		bpf_map_delete_elem(&call_runs, &key);
	}
	return 0;
}

INLINE int on_linked(void)
{
	struct ttft_linked *rec;

	if (!is_watched(current_task()))
		return 0;
	rec = reserve_record(TTFT_LINKED, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_LINKED, bpf_ktime_get_ns(), bpf_get_current_pid_tgid());
	submit_record(rec, true);
	return 0;
}

SEC("uprobe")
int ttft_call(void *ctx)
{
	return on_call(ctx, (u32)bpf_get_attach_cookie(ctx));
}

/* The dynamic loader calls an empty function for debuggers each time it has mapped libraries. */
SEC("uprobe")
int ttft_linked(void *ctx)
{
	return on_linked();
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(ttft_call_end, struct task_struct *task)
{
	return on_thread_end(task);
}
