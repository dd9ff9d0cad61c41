/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Every difference between kernels, told by what exists in their BTF, never by
 * version number.
 */
#ifndef TTFT_COMPAT_BPF_H
#define TTFT_COMPAT_BPF_H

#include "common.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define SYS_READ 0
#define SYS_OPEN 2
#define SYS_MMAP 9
#define SYS_MUNMAP 11
#define SYS_PREAD64 17
#define SYS_READV 19
#define SYS_MADVISE 28
#define SYS_OPENAT 257
#define SYS_PREADV 295
#define SYS_PREADV2 327
#elif defined(__TARGET_ARCH_arm64)
#define SYS_OPEN -2 /* arm64 never had it */
#define SYS_OPENAT 56
#define SYS_READ 63
#define SYS_READV 65
#define SYS_PREAD64 67
#define SYS_PREADV 69
#define SYS_MUNMAP 215
#define SYS_MMAP 222
#define SYS_MADVISE 233
#define SYS_PREADV2 286
#endif
#define SYS_OPENAT2 437

/* What the plain object does without, and what it has in place of it:
 * - task local storage for tracing programs, 4cf1bc1f1045 and a10787e6d58c (5.11, 5.12):
 *   hashes by process and by thread id;
 * - types of the kernel's own (BTF), which some kernels are built without, and so typed loads,
 *   bpf_get_current_task_btf, 3ca1032ab7ab (5.11) and bpf_skc_to_tcp_sock: raw tracepoints, reads
 *   by helper. What CO-RE needs may then come out of a file;
 * - atomic exchange and compare-and-exchange, 5ffa25502b5a (5.12): a map that lets one in;
 * - global functions that take pointers, e5069b9c23b3 (5.12): static ones;
 * - programs with functions as callbacks, 69c087ba6225 (5.13), bpf_loop, e6f2dd0f8067 (5.17),
 *   ring records of variable size, bc34dee65a65 (5.19): records by class of size;
 * - bpf_find_vma, 7c7e3d31e785 (5.17): a walk of the tree of mappings.
 */

INLINE struct mm_struct *mm_of(struct task_struct *task)
{
	return GET(task, mm);
}

INLINE struct fdtable *fdtable_of(struct task_struct *task)
{
	struct files_struct *files = GET(task, files);

	return files ? GET(files, fdt) : NULL;
}

struct syscall_args {
	u64 a0, a1, a2, a3, a4, a5;
};

INLINE struct syscall_args syscall_args(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (struct syscall_args){GET(regs, di),  GET(regs, si), GET(regs, dx),
				     GET(regs, r10), GET(regs, r8), GET(regs, r9)};
#else
	return (struct syscall_args){GET(regs, orig_x0), GET(regs, regs[1]), GET(regs, regs[2]),
				     GET(regs, regs[3]), GET(regs, regs[4]), GET(regs, regs[5])};
#endif
}

INLINE long syscall_number(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return GET(regs, orig_ax);
#else
	return GET(regs, syscallno);
#endif
}

/* 32-bit calls have numbers of their own. */
INLINE bool is_compat_syscall(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	return GET(task, thread_info.status) & 2; /* TS_COMPAT */
#else
	return false;
#endif
}

/* bpf_rdonly_cast (a35b9af4ec2c, 6.2) makes a walked pointer typed: plain loads instead
 * of a helper call for each field. The loader says by an option whether it is there.
 */
#ifndef TTFT_PLAIN
extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __ksym __weak;

#define CAST(type, ptr) ((struct type *)bpf_rdonly_cast(ptr, bpf_core_type_id_kernel(struct type)))
#endif

/* A file in a container's image is a front for one on a real file system, whose inode has
 * the pages and is what gets mapped. private_data is the real file, or since 87a8a76c34a2
 * (6.13) a struct ovl_file that has it.
 */
INLINE u64 real_file(u64 ptr)
{
	struct file *file = (void *)ptr;
	u64 private = (u64)BPF_CORE_READ(file, private_data), real = private;
	struct ovl_file *front = (void *)private;

	if (bpf_core_type_exists(struct ovl_file))
		real = (u64)BPF_CORE_READ(front, realfile);
	return real ? real : ptr;
}

/* Is this fault one of the program's own, not of a system call that populates a mapping?
 * Kernels without version 1 memory cgroups do not say: taken for its own then.
 */
INLINE bool in_user_fault(struct task_struct *task)
{
	if (!bpf_core_field_exists(task->in_user_fault))
		return true;
	return BPF_CORE_READ_BITFIELD(task, in_user_fault);
}

/* memdesc_flags_t: 53fbef56e07d (6.18); before, folio.flags was an unsigned long. */
struct folio___flat {
	unsigned long flags;
	unsigned long _flags_1;
	unsigned char _folio_order;
} __attribute__((preserve_access_index));

/* Pages of a folio. The order is in _flags_1 since ebc1baf5c9b4 (6.6). */
INLINE u64 folio_pages(struct folio *folio)
{
	struct folio___flat *flat = (void *)folio;
	unsigned long flags;

	if (bpf_core_type_exists(memdesc_flags_t))
		flags = GET(folio, flags.f);
	else
		flags = GET(flat, flags);
	if (!(flags & (1ul << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(flat->_folio_order))
		return 1ul << (GET(flat, _folio_order) & 31);
	return 1ul << (GET(folio, _flags_1) & 31);
}

/* mm_lock_seq counts write locks of the memory map, so any change of it: an int since
 * 5e31275cc997 (6.4), a seqcount since eb449bd96954 (6.14).
 */
struct mm_struct___int {
	int mm_lock_seq;
} __attribute__((preserve_access_index));

INLINE u64 mm_generation(struct mm_struct *mm)
{
	struct mm_struct___int *old = (void *)mm;

	if (bpf_core_field_exists(mm->mm_lock_seq.sequence))
		return GET(mm, mm_lock_seq.sequence);
	if (bpf_core_field_exists(old->mm_lock_seq))
		return (u32)GET(old, mm_lock_seq);
	return (u64)(u32)GET(mm, map_count) << 32 ^ GET(mm, total_vm);
}

/* A socket has a pointer to its cgroup since 8520e224f547 (5.16). Before, it is in a word whose
 * low bits say that version 1 groups took its place: then it counts for the root.
 */
struct sock_cgroup_data___word {
	u64 val;
} __attribute__((preserve_access_index));

#define CGROUP_ROOT 1

/* Inode of the folder; 0 where the kernel does not say. */
INLINE u64 cgroup_of(struct sock *sk)
{
	struct sock_cgroup_data___word *old;
	u64 word;

	if (!bpf_core_field_exists(sk->sk_cgrp_data))
		return 0;
	old = (void *)__builtin_preserve_access_index(&sk->sk_cgrp_data);
	if (!bpf_core_field_exists(old->val))
		return BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
	word = BPF_CORE_READ(old, val);
	if (!word || word & 3)
		return CGROUP_ROOT;
	return BPF_CORE_READ((struct cgroup *)word, kn, id);
}

/* Ring records of variable size: bc34dee65a65 (5.19). bpf_loop is older: e6f2dd0f8067 (5.17). */
INLINE bool has_dynptr(void)
{
	return bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_ringbuf_reserve_dynptr);
}

#endif
