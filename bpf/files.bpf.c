// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* File calls, and driver calls where these are wanted, by the tracepoints of all system calls:
 * others pay for them once.
 */
#include "devices.bpf.h"

TRACEPOINT(sys_enter)
int BPF_PROG(ttft_sys_enter, struct pt_regs *regs, long nr)
{
	on_device_enter(regs, nr);
	return on_enter(regs, nr);
}

TRACEPOINT(sys_exit)
int BPF_PROG(ttft_sys_exit, struct pt_regs *regs, long ret)
{
	long nr = syscall_number(regs);

	on_device_leave(nr, ret);
	return on_leave(regs, nr, ret);
}
