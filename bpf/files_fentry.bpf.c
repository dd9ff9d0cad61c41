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
ON_BOTH(readv, SYS_READV)
ON_BOTH(preadv, SYS_PREADV)
ON_BOTH(preadv2, SYS_PREADV2)
ON_BOTH(mmap, SYS_MMAP)
ON_BOTH(madvise, SYS_MADVISE)
ON_BOTH(munmap, SYS_MUNMAP)

/* Of all ways to open: each program costs a millisecond to attach. */
SEC("fexit/do_sys_openat2")
int BPF_PROG(ttft_open_done, int folder, const char *name, void *how, int ret)
{
	if (ret >= 0)
		exit_open(current_task(), ret, (u64)name);
	return 0;
}
