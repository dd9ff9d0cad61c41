/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is mapped at an address. Each thread remembers the last two mappings. */
#ifndef TTFT_MAPPINGS_BPF_H
#define TTFT_MAPPINGS_BPF_H

#include "tracked.bpf.h"

struct vma_facts {
	u64 start, end, pgoff, file;
};

#ifdef TTFT_PLAIN

#define VMA_DEPTH 40 /* of a balanced tree of more mappings than a process may have */
#define WRITER_LOCKED 1

INLINE bool map_is_locked(struct mm_struct *mm)
{
	return BPF_CORE_READ(mm, mmap_lock.count.counter) & WRITER_LOCKED;
}

INLINE void note_vma(struct vm_area_struct *vma, u64 start, u64 end, struct vma_facts *out)
{
	out->start = start;
	out->end = end;
	out->pgoff = BPF_CORE_READ(vma, vm_pgoff);
	out->file = (u64)BPF_CORE_READ(vma, vm_file);
}

/* What is mapped at `addr`; false while the memory map is locked for a change. bpf_find_vma
 * came in 7c7e3d31e785 (5.17); until 524e00b36e8c (6.1) mappings are in a tree that can be walked.
 */
INLINE bool find_vma(struct task_struct *task, u64 addr, struct vma_facts *out)
{
	struct mm_struct *mm = mm_of(task);
	struct vm_area_struct *vma;
	struct rb_node *node;
	u64 start, end;

	*out = (struct vma_facts){};
	if (!bpf_core_field_exists(mm->mm_rb))
		return true; /* `ttft doctor` says what is lost by that */
	if (map_is_locked(mm))
		return false;
	node = BPF_CORE_READ(mm, mm_rb.rb_node);
	for (int i = 0; i < VMA_DEPTH && node; i++) {
		vma = (void *)node - bpf_core_field_offset(struct vm_area_struct, vm_rb);
		start = BPF_CORE_READ(vma, vm_start);
		end = BPF_CORE_READ(vma, vm_end);
		if (addr < start) {
			node = BPF_CORE_READ(node, rb_left);
		} else if (addr >= end) {
			node = BPF_CORE_READ(node, rb_right);
		} else {
			note_vma(vma, start, end, out);
			break;
		}
	}
	return !map_is_locked(mm);
}

#else

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

#endif

/* Fill `slot` with what is mapped at `addr`; false when it cannot be told now. */
INLINE bool learn_vma(struct thread *t, struct task_struct *task, u64 addr, struct vma_slot *slot)
{
	u64 generation = mm_generation(mm_of(task));
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

/* The slot's index, or -1 when the mapping cannot be told now. */
GLOBAL int vma_index(struct thread *t, u64 addr)
{
	struct task_struct *task = current_task();
	struct vma_slot *slot;
	u64 generation;

	if (!t || !mm_of(task))
		return -1;
	generation = mm_generation(mm_of(task));
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
