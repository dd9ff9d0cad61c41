// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Page faults on tracked files by the two functions of the page cache that serve them. These are
 * given the mapping, so nothing has to be looked up, and no event has to be opened for each
 * thread. Faults of memory that is not a file's pay nothing: handle_mm_fault would see them all.
 */
#include "mappings.bpf.h"
#include "spans.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum fault_flag {
	FAULT_FLAG_TRIED = 1 << 5, /* once more, after VM_FAULT_RETRY */
	FAULT_FLAG_USER = 1 << 6,
	FAULT_FLAG_REMOTE = 1 << 7, /* of another process's memory */
	FAULT_FLAG_INTERRUPTIBLE = 1 << 9,
};

struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long address;
	enum fault_flag flags;
};

#pragma clang attribute pop

enum vm_fault_reason {
	VM_FAULT_OOM = 0x1,
	VM_FAULT_SIGBUS = 0x2,
	VM_FAULT_MAJOR = 0x4,
	VM_FAULT_HWPOISON = 0x10,
	VM_FAULT_HWPOISON_LARGE = 0x20,
	VM_FAULT_SIGSEGV = 0x40,
	VM_FAULT_NOPAGE = 0x100, /* the page is mapped */
	VM_FAULT_RETRY = 0x400,
	VM_FAULT_FALLBACK = 0x800,
};

#define VM_FAULT_ERROR                                                                             \
	(VM_FAULT_OOM | VM_FAULT_SIGBUS | VM_FAULT_SIGSEGV | VM_FAULT_HWPOISON |                   \
	 VM_FAULT_HWPOISON_LARGE | VM_FAULT_FALLBACK)

/* An access found the page missing, in user mode or in a system call that copies; not a call
 * that populates or pins memory.
 */
INLINE bool is_own(struct vm_fault *fault)
{
	u32 flags = fault->flags;

	return flags & (FAULT_FLAG_USER | FAULT_FLAG_INTERRUPTIBLE) && !(flags & FAULT_FLAG_REMOTE);
}

INLINE bool is_large(struct vm_fault *fault)
{
	return fault->vma->vm_file->f_inode->i_size >= options.min_file_size;
}

/* Most faults of most processes end here. */
INLINE bool is_followed(struct vm_fault *fault)
{
	return is_large(fault) && is_own(fault) && is_watched(current_task());
}

INLINE struct vma_slot *slot_of(struct thread *t, struct vm_area_struct *vma, u64 addr)
{
	u64 generation = mm_generation(mm_of(current_task())), file = 0;
	struct ttft_file_id id = {};
	struct file_facts f = {};
	struct vma_slot *slot;

	if (slot_holds(&t->slots[0], addr, generation))
		return &t->slots[0];
	if (slot_holds(&t->slots[1], addr, generation))
		return &t->slots[1];
	t->next_slot ^= 1;
	slot = t->next_slot & 1 ? &t->slots[1] : &t->slots[0];
	bpf_probe_read_kernel(&file, sizeof(file), &vma->vm_file); /* a number, to be hashed */
	if (!file_facts(file, &f) || !resolve(t, &f, -1, &id))
		id = (struct ttft_file_id){};
	slot->start = vma->vm_start;
	slot->end = vma->vm_end;
	slot->pgoff = vma->vm_pgoff;
	slot->generation = generation;
	slot->file = id;
	return slot;
}

/* What the fault is about, kept in the thread: at its end the mapping may be gone. */
INLINE bool note_fault(struct thread *t, struct vm_fault *fault)
{
	struct vma_slot *slot = slot_of(t, fault->vma, fault->address);

	t->fault.file = slot->file;
	t->fault.addr = fault->address;
	t->fault.first = slot->pgoff ? 0 : slot->start;
	t->fault.len = slot->end - slot->start;
	return slot->file.ino;
}

/* It goes on after its first part had to wait for the disk. */
INLINE bool is_retried(const struct thread *t, struct vm_fault *fault)
{
	return t->miss_ns && fault->flags & FAULT_FLAG_TRIED && t->fault.addr == fault->address;
}

INLINE void tell_fault(struct thread *t, u32 op, u64 start_ns, u64 end_ns)
{
	struct event e = {
		.file = t->fault.file,
		.start_ns = start_ns,
		.end_ns = end_ns,
		.busy_ns = end_ns - start_ns,
		.bytes = 4096,
		.tgid_tid = bpf_get_current_pid_tgid(),
		.op = op,
		.count = 1,
	};

	t->fault_ns = 0;
	t->miss_ns = 0;
	add_event(&e);
	if (t->fault.first && t->seen.ino == e.file.ino && t->seen_magic != 2)
		take_magic(t, &t->fault.file, t->fault.first, t->fault.len);
}

/* Pages around the address are about to be mapped from the page cache. */
INLINE int on_map(struct vm_fault *fault)
{
	struct thread *t;

	if (!is_followed(fault))
		return 0;
	t = thread_of_current();
	if (t && !is_retried(t, fault)) {
		t->fault.addr = fault->address;
		t->fault_ns = bpf_ktime_get_ns();
	}
	return 0;
}

/* Its own page too: that was the fault. Its time is known where minor faults are timed. */
INLINE int on_mapped(struct vm_fault *fault, u32 ret)
{
	u64 now, start;
	struct thread *t;

	if (!(ret & VM_FAULT_NOPAGE) || !is_followed(fault))
		return 0;
	t = thread_of_current();
	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	if (is_retried(t, fault)) {
		tell_fault(t, TTFT_OP_FAULT_MAJOR, t->miss_ns, now);
		return 0;
	}
	start = t->fault_ns && t->fault.addr == fault->address ? t->fault_ns : now;
	if (note_fault(t, fault))
		tell_fault(t, TTFT_OP_FAULT_MINOR, start, now);
	return 0;
}

/* The page was not mapped by that: it is looked for, and maybe read. */
INLINE int on_fill(struct vm_fault *fault)
{
	struct thread *t;

	if (!is_followed(fault))
		return 0;
	t = thread_of_current();
	if (!t || is_retried(t, fault))
		return 0;
	t->fault_ns = 0;
	t->miss_ns = note_fault(t, fault) ? bpf_ktime_get_ns() : 0;
	return 0;
}

INLINE int on_filled(struct vm_fault *fault, u32 ret)
{
	struct thread *t = known_thread(current_task());
	bool major;

	if (!t || !t->miss_ns || t->fault.addr != fault->address || ret & VM_FAULT_RETRY)
		return 0;
	major = ret & VM_FAULT_MAJOR || fault->flags & FAULT_FLAG_TRIED;
	if (ret & VM_FAULT_ERROR)
		t->miss_ns = 0;
	else
		tell_fault(t, major ? TTFT_OP_FAULT_MAJOR : TTFT_OP_FAULT_MINOR, t->miss_ns,
			   bpf_ktime_get_ns());
	return 0;
}

SEC("fentry/filemap_map_pages")
int BPF_PROG(ttft_fault_map, struct vm_fault *fault)
{
	return on_map(fault);
}

SEC("fexit/filemap_map_pages")
int BPF_PROG(ttft_fault_mapped, struct vm_fault *fault, u64 first, u64 last, u32 ret)
{
	return on_mapped(fault, ret);
}

SEC("fentry/filemap_fault")
int BPF_PROG(ttft_fault_fill, struct vm_fault *fault)
{
	return on_fill(fault);
}

SEC("fexit/filemap_fault")
int BPF_PROG(ttft_fault_filled, struct vm_fault *fault, u32 ret)
{
	return on_filled(fault, ret);
}
