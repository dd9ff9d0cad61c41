// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* File calls by the functions of these system calls alone: others pay nothing. */
#include "files.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define SYSCALL "__x64_sys_"
#else
#define SYSCALL "__arm64_sys_"
#endif

#define ON_ENTER(name, nr)                                                                         \
	SEC("fentry/" SYSCALL #name)                                                               \
	int BPF_PROG(ttft_##name, struct pt_regs *regs)                                            \
	{                                                                                          \
		return on_enter(regs, nr);                                                         \
	}

#define ON_LEAVE(name, nr)                                                                         \
	SEC("fexit/" SYSCALL #name)                                                                \
	int BPF_PROG(ttft_##name##_done, struct pt_regs *regs, long ret)                           \
	{                                                                                          \
		return on_leave(regs, nr, ret);                                                    \
	}

#define ON_BOTH(name, nr) ON_ENTER(name, nr) ON_LEAVE(name, nr)

ON_BOTH(read, SYS_READ)
ON_BOTH(pread64, SYS_PREAD64)
ON_BOTH(mmap, SYS_MMAP)
ON_BOTH(madvise, SYS_MADVISE)
ON_BOTH(munmap, SYS_MUNMAP)

/* What follows stands behind several calls: each program costs millions of instructions to
 * attach.
 */

SEC("fexit/do_sys_openat2")
int BPF_PROG(ttft_open_done, int folder, const char *name, void *how, int ret)
{
	if (ret >= 0)
		exit_open(current_task(), ret, (u64)name);
	return 0;
}

INLINE int on_readv(const void *place, const u64 *pos)
{
	struct thread *t = watched_thread(current_task(), SYS_READV);
	struct file_facts f = {};
	u64 file = 0, begin = 0;

	if (!t)
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), place); /* a number, to be hashed */
	if (!note_read(t, file, -1, &f))
		return 0;
	bpf_probe_read_kernel(&begin, sizeof(begin), pos);
	t->want_magic = t->seen_magic != 2 && begin == 0;
	begin_call(t);
	return 0;
}

INLINE int on_readv_done(u64 list, long ret)
{
	struct thread *t = ending_thread(current_task(), SYS_READV, ret);
	struct syscall_args args = {.a1 = list};

	if (t)
		exit_event(t, SYS_READV, &args, ret);
	return 0;
}

SEC("fentry/vfs_readv")
int BPF_PROG(ttft_readv, struct file *file, struct iovec *list, u64 count, u64 *pos)
{
	return on_readv(ctx, pos);
}

SEC("fexit/vfs_readv")
int BPF_PROG(ttft_readv_done, struct file *file, struct iovec *list, u64 count, u64 *pos, int flags,
	     long ret)
{
	return on_readv_done((u64)list, ret);
}
