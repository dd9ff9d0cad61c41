// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Page faults on tracked files. Software perf events of watched threads mark begin and
 * end of each fault, so other processes pay nothing.
 */
#include "mappings.bpf.h"
#include "spans.bpf.h"

INLINE int on_fault_begin(u64 addr)
{
	struct task_struct *task = current_task();
	struct thread *t;

	t = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		count_lost(TTFT_SPAN, TTFT_LOSS_TABLE);
		return 0;
	}
	t->fault_addr = addr;
	t->fault_ns = bpf_ktime_get_ns();
	return 0;
}

INLINE struct late_fault *late_slot(struct thread *t, u64 index)
{
	return index < LATE_FAULTS ? &t->late[index] : NULL;
}

/* Ask again when the next fault ends. */
INLINE void keep_for_later(struct thread *t, const struct late_fault *fault)
{
	struct late_fault *late = late_slot(t, t->late_count);

	if (late) {
		*late = *fault;
		t->late_count++;
	} else {
		count_lost(TTFT_SPAN, TTFT_LOSS_LOOKUP);
	}
}

/* A global function: verified once. 0 when the mapping cannot be told now. */
__noinline int account(struct thread *t, struct late_fault *fault)
{
	struct event e = {.bytes = 4096};
	struct vma_slot *slot;

	if (!t || !fault)
		return 1;
	slot = vma_at(t, fault->addr);
	if (!slot)
		return 0;
	if (!slot->file.ino)
		return 1;
	e.op = fault->op;
	e.start_ns = fault->start_ns;
	e.end_ns = fault->end_ns;
	e.file = slot->file;
	e.tgid_tid = bpf_get_current_pid_tgid();
	add_event(&e);
	if (slot->pgoff == 0 && t->seen.ino == slot->file.ino && t->seen_magic != 2)
		take_magic(t, &slot->file, slot->start, slot->end - slot->start);
	return 1;
}

INLINE int on_fault_end(u32 op)
{
	struct thread *t = bpf_task_storage_get(&threads, current_task(), NULL, 0);
	struct late_fault fault = {.op = op}, *late;

	if (!t || !t->fault_ns || !current_task()->mm)
		return 0;
	fault.end_ns = bpf_ktime_get_ns();
	fault.start_ns = t->fault_ns;
	fault.addr = t->fault_addr;
	t->fault_ns = 0;
	late = late_slot(t, t->late_count - 1);
	if (late && account(t, late))
		t->late_count--;
	if (!account(t, &fault))
		keep_for_later(t, &fault);
	return 0;
}

SEC("perf_event")
int ttft_fault_begin(struct bpf_perf_event_data *ctx)
{
	return on_fault_begin(ctx->addr);
}

SEC("perf_event")
int ttft_fault_minor(struct bpf_perf_event_data *ctx)
{
	return on_fault_end(TTFT_OP_FAULT_MINOR);
}

SEC("perf_event")
int ttft_fault_major(struct bpf_perf_event_data *ctx)
{
	return on_fault_end(TTFT_OP_FAULT_MAJOR);
}
