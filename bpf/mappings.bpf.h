/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is mapped at an address. Each thread remembers the last two mappings. */
#ifndef TTFT_MAPPINGS_BPF_H
#define TTFT_MAPPINGS_BPF_H

#include "tracked.bpf.h"

struct vma_facts {
	u64 start, end, pgoff, file;
};

static long note_vma(struct task_struct *task, struct vm_area_struct *vma, struct vma_facts *out)
{
	out->start = vma->vm_start;
	out->end = vma->vm_end;
	out->pgoff = vma->vm_pgoff;
	/* a plain number: pointers cannot be hashed */
	bpf_core_read(&out->file, sizeof(out->file), &vma->vm_file);
	return 0;
}

/* What is mapped at `addr`; false while the memory map is locked for a change. */
INLINE bool find_vma(struct task_struct *task, u64 addr, struct vma_facts *out)
{
	long err;

	*out = (struct vma_facts){};
	err = bpf_find_vma(task, addr, note_vma, out, 0);
	return !err || err == -ENOENT;
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

/* A global function: verified once, not at each call. The slot's index, or -1 when the
 * mapping cannot be told now.
 */
__noinline int vma_index(struct thread *t, u64 addr)
{
	struct task_struct *task = current_task();
	struct vma_slot *slot;
	u64 generation;

	if (!t || !task->mm)
		return -1;
	generation = mm_generation(task->mm);
	if (slot_holds(&t->slots[0], addr, generation))
		return 0;
	if (slot_holds(&t->slots[1], addr, generation))
		return 1;
	t->next_slot ^= 1;
	slot = t->next_slot & 1 ? &t->slots[1] : &t->slots[0];
	slot->end = 0;
	if (!learn_vma(t, task, addr, slot))
		return -1;
	return t->next_slot & 1;
}

INLINE struct vma_slot *vma_at(struct thread *t, u64 addr)
{
	int index = vma_index(t, addr);

	if (index < 0)
		return NULL;
	return index ? &t->slots[1] : &t->slots[0];
}

#endif
