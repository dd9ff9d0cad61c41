/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What watched processes do with large files: the workers behind the ways to see it. */
#ifndef TTFT_FILES_BPF_H
#define TTFT_FILES_BPF_H

#include "mappings.bpf.h"
#include "spans.bpf.h"

struct iovec {
	u64 base, len;
};

INLINE bool is_read(long nr)
{
	return nr == SYS_READ || nr == SYS_PREAD64 || nr == SYS_READV || nr == SYS_PREADV ||
	       nr == SYS_PREADV2;
}

INLINE bool is_open(long nr)
{
	return nr == SYS_OPEN || nr == SYS_OPENAT || nr == SYS_OPENAT2;
}

/* Calls whose begin matters too. */
INLINE bool has_span(long nr)
{
	return is_read(nr) || nr == SYS_MMAP || nr == SYS_MADVISE || nr == SYS_MUNMAP;
}

/* Does this read begin at the first byte? preadv2 at -1 uses the file's position. */
INLINE bool reads_start(long nr, const struct syscall_args *args, const struct file_facts *f)
{
	if (nr == SYS_READ || nr == SYS_READV || (nr == SYS_PREADV2 && args->a3 == ~0ull))
		return f->pos == 0;
	return args->a3 == 0;
}

/* A read of the file at `ptr`. */
INLINE bool note_read(struct thread *t, u64 ptr, s32 fd, struct file_facts *f)
{
	if (!file_facts(ptr, f) || !resolve(t, f, fd, &t->file))
		return false;
	t->op = f->flags & O_DIRECT ? TTFT_OP_READ_DIRECT : TTFT_OP_READ;
	return true;
}

INLINE bool enter_read(struct thread *t, struct task_struct *task, long nr,
		       const struct syscall_args *args)
{
	struct file_facts f = {};

	if (!note_read(t, file_of_fd(task, (s32)args->a0), (s32)args->a0, &f))
		return false;
	t->want_magic = t->seen_magic != 2 && reads_start(nr, args, &f);
	return true;
}

INLINE bool enter_mmap(struct thread *t, struct task_struct *task, const struct syscall_args *args)
{
	struct file_facts f = {};

	if (args->a3 & MAP_ANONYMOUS || !file_facts(file_of_fd(task, (s32)args->a4), &f) ||
	    !resolve(t, &f, (s32)args->a4, &t->file))
		return false;
	t->op = TTFT_OP_MMAP;
	t->want_magic = t->seen_magic != 2 && args->a5 == 0;
	return true;
}

/* madvise, munmap: told by the mapping at the address, which munmap takes away. */
INLINE bool enter_mapping(struct thread *t, long nr, const struct syscall_args *args)
{
	struct vma_slot *slot = vma_at(t, args->a0);

	if (!slot)
		count_lost(TTFT_SPAN, TTFT_LOSS_LOOKUP);
	if (!slot || !slot->file.ino)
		return false;
	t->file = slot->file;
	if (slot->pgoff == 0 && t->seen.ino == slot->file.ino && t->seen_magic != 2)
		take_magic(t, &t->file, slot->start, slot->end - slot->start);
	t->op = nr == SYS_MADVISE ? TTFT_OP_MADVISE : TTFT_OP_MUNMAP;
	return true;
}

/* The kernel leaves a program out that is running on this processor already: for a stranger,
 * maybe, where it may be preempted in it (seen on 7.2). So either half of a call may be missing;
 * each is told by the other one.
 */
INLINE void count_half(void)
{
	count_lost(TTFT_SPAN, TTFT_LOSS_HALF);
}

/* The programs may be there for the calls of drivers alone. */
INLINE bool files_wanted(void)
{
	return arming(ARMING_FILES) & 1;
}

/* The current thread, at the begin of a call, if its process is watched. */
INLINE struct thread *watched_thread(struct task_struct *task, long nr)
{
	struct thread *t;
	u32 now;

	if (!is_watched(task) || is_compat_syscall(task) || !files_wanted())
		return NULL;
	t = thread_of_current();
	if (!t)
		return NULL;
	now = arming(ARMING_FILES);
	if (t->arming == now && t->call && t->wanted)
		count_half();
	t->arming = now;
	t->call = nr + 1;
	t->wanted = 0;
	t->want_magic = 0;
	return t;
}

INLINE void begin_call(struct thread *t)
{
	t->wanted = 1;
	t->enter_ns = bpf_ktime_get_ns();
}

/* `nr` is a constant where a program sees one call only. */
INLINE int on_enter(struct pt_regs *regs, long nr)
{
	struct task_struct *task;
	struct syscall_args args;
	struct thread *t;
	bool wanted;

	if (!has_span(nr))
		return 0;
	task = current_task();
	t = watched_thread(task, nr);
	if (!t)
		return 0;
	args = syscall_args(regs);
	if (is_read(nr))
		wanted = enter_read(t, task, nr, &args);
	else if (nr == SYS_MMAP)
		wanted = enter_mmap(t, task, &args);
	else
		wanted = enter_mapping(t, nr, &args);
	if (wanted)
		begin_call(t);
	return 0;
}

INLINE void exit_open(struct task_struct *task, long fd, u64 user_name)
{
	u64 now = bpf_ktime_get_ns();
	struct ttft_file_state *state;
	struct file_facts f = {};
	struct ttft_open *rec;
	u32 token;

	if (!is_watched(task) || is_compat_syscall(task) || !files_wanted() ||
	    !file_facts(file_of_fd(task, fd), &f))
		return;
	new_token(f.ptr);
	token = file_token(f.ptr);
	state = track(&f, token, fd, user_name, now);
	if (!state)
		return;
	__sync_fetch_and_add(&state->opens, 1);
	rec = reserve_record(TTFT_OPEN, sizeof(*rec));
	if (!rec)
		return;
	fill_header(&rec->h, TTFT_OPEN, now, bpf_get_current_pid_tgid());
	rec->file = (struct ttft_file_id){.ino = f.ino, .dev = f.dev, .token = token};
	rec->size = f.size;
	rec->open_flags = f.flags;
	rec->reserved = 0;
	submit_record(rec, false);
}

/* Where the first bytes of a read at offset 0, or of a mapping, now lie. */
INLINE void exit_magic(struct thread *t, long nr, const struct syscall_args *args, long ret)
{
	struct iovec first = {.base = args->a1, .len = ret};

	if (nr == SYS_MMAP) {
		first.base = ret;
		first.len = args->a1;
	} else if (nr != SYS_READ && nr != SYS_PREAD64) {
		if (bpf_probe_read_user(&first, sizeof(first), (void *)args->a1))
			return;
		if (first.len > ret)
			first.len = ret;
	}
	take_magic(t, &t->file, first.base, first.len);
}

INLINE u32 mmap_flags(u64 flags)
{
	return (flags & MAP_POPULATE ? TTFT_SPAN_POPULATE : 0) |
	       (flags & MAP_SHARED ? TTFT_SPAN_SHARED : 0);
}

INLINE void exit_event(struct thread *t, long nr, const struct syscall_args *args, long ret)
{
	u64 now = bpf_ktime_get_ns();
	struct event e = {
		.file = t->file,
		.start_ns = t->enter_ns,
		.end_ns = now,
		.busy_ns = now - t->enter_ns,
		.count = 1,
		.tgid_tid = bpf_get_current_pid_tgid(),
		.op = t->op,
		.bytes = is_read(nr) ? ret : args->a1,
	};

	if (nr == SYS_MMAP)
		e.flags = mmap_flags(args->a3);
	else if (nr == SYS_MADVISE)
		e.flags = (args->a2 & 0xff) << 8;
	/* A mapping that is not populated will be faulted in: user space must know now. */
	if (nr == SYS_MMAP)
		tell_event(&e, !(e.flags & TTFT_SPAN_POPULATE) && !t->seen_elf);
	else
		add_event(&e);
	if (t->want_magic)
		exit_magic(t, nr, args, ret);
}

/* It began after the thread had been seen to begin another one. */
INLINE bool missed_begin(const struct thread *t, struct task_struct *task)
{
	u32 now = arming(ARMING_FILES);

	return now & 1 && t->arming == now && is_watched(task) && !is_compat_syscall(task);
}

/* The current thread, at the end of a call that succeeded, if it is one to tell. */
INLINE struct thread *ending_thread(struct task_struct *task, long nr, long ret)
{
	struct thread *t = known_thread(task);
	bool begun, failed = ret < 0 && ret >= -4095;

	if (!t)
		return NULL;
	begun = t->call == nr + 1 && t->arming == arming(ARMING_FILES);
	t->call = 0;
	if (!begun && !failed && missed_begin(t, task))
		count_half();
	return begun && t->wanted && !failed ? t : NULL;
}

INLINE int on_leave(struct pt_regs *regs, long nr, long ret)
{
	struct task_struct *task;
	struct syscall_args args;
	struct thread *t;

	if (!has_span(nr) && !is_open(nr))
		return 0;
	task = current_task();
	if (is_open(nr)) {
		args = syscall_args(regs);
		if (ret >= 0)
			exit_open(task, ret, nr == SYS_OPEN ? args.a0 : args.a1);
		return 0;
	}
	t = ending_thread(task, nr, ret);
	if (!t)
		return 0;
	args = syscall_args(regs);
	exit_event(t, nr, &args, ret);
	return 0;
}

#endif
