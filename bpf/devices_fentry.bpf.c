// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Driver calls by the functions of these system calls alone: others pay nothing. */
#include "devices.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define DEVICE_SYSCALL "__x64_sys_"
#else
#define DEVICE_SYSCALL "__arm64_sys_"
#endif

#define DEVICE_CALL(name, nr)                                                                      \
	SEC("fentry/" DEVICE_SYSCALL #name)                                                        \
	int BPF_PROG(ttft_device_##name, struct pt_regs *regs)                                     \
	{                                                                                          \
		return on_device_enter(regs, nr);                                                  \
	}                                                                                          \
	SEC("fexit/" DEVICE_SYSCALL #name)                                                         \
	int BPF_PROG(ttft_device_##name##_done, struct pt_regs *regs, long ret)                    \
	{                                                                                          \
		return on_device_leave(nr, ret);                                                   \
	}

DEVICE_CALL(ioctl, SYS_IOCTL)
DEVICE_CALL(mmap, SYS_MMAP)
DEVICE_CALL(close, SYS_CLOSE)
DEVICE_CALL(ppoll, SYS_PPOLL)
#if defined(__TARGET_ARCH_x86)
DEVICE_CALL(poll, SYS_POLL)
#endif

SEC("fentry/do_sys_openat2")
int BPF_PROG(ttft_device_open)
{
	struct syscall_args none = {};

	return enter_device(&none, SYS_OPENAT, arming(ARMING_DEVICES));
}

SEC("fexit/do_sys_openat2")
int BPF_PROG(ttft_device_open_done, int folder, const char *name, void *how, int ret)
{
	return leave_device(current_task(), SYS_OPENAT, ret);
}
