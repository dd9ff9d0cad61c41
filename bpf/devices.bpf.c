// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Driver calls by the tracepoints of all system calls: where functions cannot be traced. */
#include "devices.bpf.h"

TRACEPOINT(sys_enter)
int BPF_PROG(ttft_device_enter, struct pt_regs *regs, long nr)
{
	return on_device_enter(regs, nr);
}

TRACEPOINT(sys_exit)
int BPF_PROG(ttft_device_leave, struct pt_regs *regs, long ret)
{
	return on_device_leave(syscall_number(regs), ret);
}
