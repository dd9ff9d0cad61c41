// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Page faults on tracked files. Software perf events of watched threads mark begin and
 * end of each fault, so other processes pay nothing.
 */
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

/* Fill `slot` with what is mapped at `addr`; false when it cannot be told now. */
INLINE bool learn_vma(struct thread *t, struct task_struct *task, u64 addr, struct vma_slot *slot)
{
	u64 generation = mm_generation(task->mm);
	struct file_facts f = {};
	struct ttft_file_id id = {};
	struct vma_facts vma;

	if (!find_vma(task, addr, &vma))
		return false;
	if (!file_facts(vma.file, &f) || !resolve(t, &f, -1, &id))
		id = (struct ttft_file_id){};
	slot->start = vma.start;
	slot->end = vma.end;
	slot->pgoff = vma.pgoff;
	slot->generation = generation;
	slot->file = id;
	return true;
}

INLINE bool slot_holds(const struct vma_slot *slot, u64 addr, u64 generation)
{
	return addr >= slot->start && addr < slot->end && slot->generation == generation;
}

INLINE struct vma_slot *vma_at(struct thread *t, struct task_struct *task, u64 addr)
{
	u64 generation = mm_generation(task->mm);
	struct vma_slot *slot;

	if (slot_holds(&t->slots[0], addr, generation))
		return &t->slots[0];
	if (slot_holds(&t->slots[1], addr, generation))
		return &t->slots[1];
	t->next_slot ^= 1;
	slot = t->next_slot & 1 ? &t->slots[1] : &t->slots[0];
	slot->end = 0;
	return learn_vma(t, task, addr, slot) ? slot : NULL;
}

INLINE int on_fault_end(u32 op)
{
	struct task_struct *task = current_task();
	struct vma_slot *slot;
	struct event e = {.op = op, .bytes = 4096};
	struct thread *t = bpf_task_storage_get(&threads, task, NULL, 0);

	if (!t || !t->fault_ns || !task->mm)
		return 0;
	e.end_ns = bpf_ktime_get_ns();
	e.start_ns = t->fault_ns;
	t->fault_ns = 0;
	slot = vma_at(t, task, t->fault_addr);
	if (!slot || !slot->file.ino)
		return 0;
	e.file = slot->file;
	e.tgid_tid = bpf_get_current_pid_tgid();
	add_event(&e);
	if (slot->pgoff == 0 && t->seen.ino == slot->file.ino && t->seen_magic != 2)
		take_magic(t, &slot->file, slot->start, slot->end - slot->start);
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
