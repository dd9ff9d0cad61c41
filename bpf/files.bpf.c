// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* File calls by the tracepoints of all system calls: where functions cannot be traced. */
#include "files.bpf.h"

TRACEPOINT(sys_enter)
int BPF_PROG(ttft_sys_enter, struct pt_regs *regs, long nr)
{
	return on_enter(regs, nr);
}

TRACEPOINT(sys_exit)
int BPF_PROG(ttft_sys_exit, struct pt_regs *regs, long ret)
{
	return on_leave(regs, syscall_number(regs), ret);
}
