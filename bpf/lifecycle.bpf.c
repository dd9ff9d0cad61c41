// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Processes: who is watched, and what becomes of them. */
#include "tracked.bpf.h"

#define SIGNAL_GROUP_EXIT 4u
#define SI_KERNEL 0x80

struct comm {
	char name[TTFT_COMM_LEN];
};

struct { /* programs that are watched from their exec on */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct comm);
	__type(value, u32);
} server_comms SEC(".maps");

INLINE void start_watching(struct task_struct *leader, u32 tgid, u64 now)
{
	struct watch watch = {.since_ns = now};

	if (bpf_map_update_elem(&watched, &tgid, &watch, BPF_NOEXIST) == -E2BIG)
		count_lost(TTFT_FORK, TTFT_LOSS_TABLE);
	if (!mark_watched(leader))
		count_lost(TTFT_FORK, TTFT_LOSS_TABLE);
}

INLINE int on_fork(struct task_struct *parent, struct task_struct *child)
{
	u64 now = bpf_ktime_get_ns();
	u32 tgid = GET(child, tgid);
	struct ttft_fork *rec;

	if (GET(child, pid) != tgid || !is_watched(parent))
		return 0;
	start_watching(child, tgid, now);
	rec = reserve_record(TTFT_FORK, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_FORK, now, (u64)GET(parent, tgid) << 32 | (u32)GET(parent, pid));
	rec->child_tgid = tgid;
	rec->reserved = 0;
	bpf_probe_read_kernel(rec->comm, sizeof(rec->comm), child->comm);
	submit_record(rec, true);
	return 0;
}

INLINE int on_exec(struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	u64 now = bpf_ktime_get_ns();
	u32 tgid = GET(task, tgid);
	struct ttft_exec *rec;
	struct comm comm = {};

	bpf_probe_read_kernel(&comm, sizeof(comm), task->comm);
	/* The thread that calls exec becomes the leader: the mark may be on the old one. */
	if (!is_watched(task) && !tgid_watched(tgid) && !bpf_map_lookup_elem(&server_comms, &comm))
		return 0;
	start_watching(task, tgid, now);
	if (old_pid != GET(task, pid))
		forget_thread(old_pid);
	rec = reserve_record(TTFT_EXEC, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_EXEC, now, bpf_get_current_pid_tgid());
	__builtin_memcpy(rec->comm, comm.name, sizeof(rec->comm));
	if (bpf_probe_read_kernel_str(rec->filename, sizeof(rec->filename), GET(bprm, filename)) <
	    0)
		rec->filename[0] = 0;
	submit_record(rec, true);
	return 0;
}

INLINE u32 group_exit_code(struct task_struct *task)
{
	struct signal_struct *signal = GET(task, signal);

	if (GET(signal, flags) & SIGNAL_GROUP_EXIT)
		return GET(signal, group_exit_code);
	return GET2(task, group_leader, exit_code);
}

/* Faults whose mapping was never told. */
INLINE void count_late_faults(struct task_struct *task)
{
	struct thread *t = known_thread(task);

	if (!t || !t->late_count)
		return;
	for (int i = 0; i < LATE_RUNS; i++)
		count_losses(TTFT_SPAN, TTFT_LOSS_LOOKUP, t->late[i].count);
}

INLINE int on_exit(struct task_struct *task)
{
	u32 tgid = GET(task, tgid);
	struct ttft_exit *rec;

	count_late_faults(task);
	forget_thread(GET(task, pid));
	if (GET2(task, signal, live.counter) > 0)
		return 0;
	/* Two last threads may both see none alive: the one that deletes reports. */
	if (bpf_map_delete_elem(&watched, &tgid))
		return 0;
	rec = reserve_record(TTFT_EXIT, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_EXIT, bpf_ktime_get_ns(), bpf_get_current_pid_tgid());
	rec->code = group_exit_code(task);
	rec->reserved = 0;
	submit_record(rec, true);
	return 0;
}

/* `info` may be SEND_SIG_NOINFO (0, a user) or SEND_SIG_PRIV (1, the kernel). */
INLINE s32 signal_code(struct kernel_siginfo *info)
{
	u64 raw = (u64)info;

	if (raw == 0)
		return 0;
	if (raw == 1)
		return SI_KERNEL;
	return BPF_CORE_READ(info, si_code);
}

INLINE int on_signal(int signal, struct kernel_siginfo *info, struct task_struct *target)
{
	struct ttft_signal *rec;

	if ((u32)signal > 31 || !(options.signals >> signal & 1) || !is_watched(target))
		return 0;
	rec = reserve_record(TTFT_SIGNAL, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_SIGNAL, bpf_ktime_get_ns(), bpf_get_current_pid_tgid());
	rec->target_tgid = GET(target, tgid);
	rec->signal = signal;
	rec->code = signal_code(info);
	rec->reserved = 0;
	submit_record(rec, false);
	return 0;
}

TRACEPOINT(sched_process_fork)
int BPF_PROG(ttft_fork, struct task_struct *parent, struct task_struct *child)
{
	return on_fork(parent, child);
}

TRACEPOINT(sched_process_exec)
int BPF_PROG(ttft_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	return on_exec(task, old_pid, bprm);
}

TRACEPOINT(sched_process_exit)
int BPF_PROG(ttft_exit, struct task_struct *task)
{
	return on_exit(task);
}

TRACEPOINT(signal_generate)
int BPF_PROG(ttft_signal, int signal, struct kernel_siginfo *info, struct task_struct *target)
{
	return on_signal(signal, info, target);
}
