// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Page faults on tracked files. Software perf events of watched threads mark their end, so
 * other processes pay nothing. An event is skipped by the kernel while a bpf() call on maps
 * was preempted on the same processor: counts may be short by that, hardly ever.
 */
#include "mappings.bpf.h"
#include "spans.bpf.h"

#define STALE_FAULT_NS 1000000000ull /* its end was not seen */
#define TOLD_EVERY_NS 10000000ull

INLINE int on_fault_begin(void)
{
	struct thread *t = thread_of_current();

	if (t)
		t->fault_ns = bpf_ktime_get_ns();
	return 0;
}

INLINE bool in_timed_fault(const struct thread *t, u64 now)
{
	return t->fault_ns && now - t->fault_ns < STALE_FAULT_NS;
}

/* Of an arming that is over. */
INLINE void forget_page(struct thread *t)
{
	if (t->paging == arming(ARMING_PAGING))
		return;
	t->near.file.ino = 0;
	t->miss_ns = 0;
}

INLINE void near_event(const struct thread *t, u64 now, struct event *e)
{
	e->file = t->near.file;
	e->start_ns = now;
	e->end_ns = now;
	e->bytes = 4096;
	e->tgid_tid = bpf_get_current_pid_tgid();
	e->op = TTFT_OP_FAULT_MINOR;
	e->count = 1;
}

#ifndef TTFT_PLAIN /* kernels with these tracepoints have all that the other object needs */

INLINE void inode_facts(struct inode *inode, struct file_facts *f)
{
	f->mode = inode->i_mode;
	f->size = inode->i_size;
	f->ino = inode->i_ino;
	f->dev = inode->i_sb->s_dev;
	f->generation = inode->i_generation;
}

/* Not one of a call that populates. A call may stand there for ever, if its end was not seen. */
INLINE bool is_own_fault(const struct thread *t, struct task_struct *task)
{
	if (bpf_core_field_exists(task->in_user_fault))
		return in_user_fault(task);
	return !t->call;
}

/* Pages around the fault were in the page cache. Its time is known only where minor faults
 * are timed, and then it is told at its end.
 */
INLINE int on_near(struct address_space *mapping, u64 first, u64 last)
{
	struct file_facts f = {};
	struct event e = {};
	struct thread *t;
	u64 now;

	if (mapping->host->i_size < options.min_file_size || !is_watched(current_task()))
		return 0;
	t = thread_of_current();
	now = bpf_ktime_get_ns();
	if (!t || in_timed_fault(t, now) || !is_own_fault(t, current_task()))
		return 0;
	inode_facts(mapping->host, &f);
	if ((f.mode & S_IFMT) != S_IFREG || !track(&f, 0, -1, 0, now))
		return 0;
	t->near.file.ino = f.ino;
	t->near.file.dev = f.dev;
	t->near.file.token = t->seen.ino == f.ino && t->seen.dev == f.dev ? t->seen.token : 0;
	t->near.first = first;
	t->near.last = last;
	t->paging = arming(ARMING_PAGING);
	near_event(t, now, &e);
	add_event(&e);
	return 0;
}

/* The page itself was not mapped by that: the fault goes on, maybe to the disk. */
INLINE int on_miss(struct address_space *mapping, u64 page)
{
	struct event e = {};
	struct thread *t;
	u64 now;

	if (mapping->host->i_size < options.min_file_size || !is_watched(current_task()))
		return 0;
	t = thread_of_current();
	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	forget_page(t);
	if (t->near.file.ino && t->near.file.ino == mapping->host->i_ino && page >= t->near.first &&
	    page <= t->near.last && !in_timed_fault(t, now)) {
		near_event(t, now, &e);
		take_back(&e);
	}
	t->near.file.ino = 0;
	t->miss_ns = now;
	t->paging = arming(ARMING_PAGING);
	return 0;
}

#endif

/* The programs above come and go. Without them a major fault is counted, and told at once by the
 * first of some, so that they come.
 */
INLINE bool is_untimed(const struct late_run *run)
{
	u32 now = arming(ARMING_PAGING);

	return run->op == TTFT_OP_FAULT_MAJOR && !run->busy_ns && now && !(now & 1);
}

INLINE void add_untimed(struct thread *t, const struct event *e)
{
	if (e->end_ns - t->told_ns < TOLD_EVERY_NS) {
		add_event(e);
		return;
	}
	t->told_ns = e->end_ns;
	tell_event(e, true);
}

/* Faults in the mapping that slot `index` has, or that begin in it. */
GLOBAL int tell_faults(struct thread *t, struct late_run *run, int index)
{
	struct event e = {};
	struct vma_slot *slot;

	if (!t || !run)
		return 1;
	slot = index ? &t->slots[1] : &t->slots[0];
	if (run->high >= slot->end) { /* several mappings: whose they were is not known */
		count_losses(TTFT_SPAN, TTFT_LOSS_LOOKUP, run->count);
		return 1;
	}
	if (!slot->file.ino)
		return 1;
	e.file = slot->file;
	e.start_ns = run->start_ns;
	e.end_ns = run->end_ns;
	e.busy_ns = run->busy_ns;
	e.bytes = 4096ull * run->count;
	e.tgid_tid = bpf_get_current_pid_tgid();
	e.op = run->op;
	e.count = run->count;
	if (is_untimed(run))
		add_untimed(t, &e);
	else
		add_event(&e);
	if (slot->pgoff == 0 && t->seen.ino == slot->file.ino && t->seen_magic != 2)
		take_magic(t, &slot->file, slot->start, slot->end - slot->start);
	return 1;
}

/* false when the mapping cannot be told now. Not nested: the stack would be too deep. */
INLINE bool account(struct thread *t, struct late_run *run)
{
	int index = vma_index(t, run->low);

	if (index < 0)
		return false;
	tell_faults(t, run, index);
	return true;
}

INLINE bool joins(const struct late_run *run, const struct late_run *fault)
{
	return run->count && run->op == fault->op && fault->low + LATE_REACH > run->low &&
	       fault->low < run->high + LATE_REACH;
}

/* Ask again when a later fault of the thread ends. */
INLINE void keep_for_later(struct thread *t, const struct late_run *fault)
{
	struct late_run *run, *empty = NULL;

	for (int i = 0; i < LATE_RUNS; i++) {
		run = &t->late[i];
		if (!run->count)
			empty = run;
		if (!joins(run, fault))
			continue;
		run->low = fault->low < run->low ? fault->low : run->low;
		run->high = fault->high > run->high ? fault->high : run->high;
		run->end_ns = fault->end_ns;
		run->busy_ns += fault->busy_ns;
		run->count++;
		return;
	}
	if (!empty) {
		count_lost(TTFT_SPAN, TTFT_LOSS_LOOKUP);
		return;
	}
	*empty = *fault;
	t->late_count++;
}

/* Another function for the verifier's sake; 0 while there is nothing or no telling. */
GLOBAL int account_late(struct thread *t)
{
	struct late_run *run;

	if (!t)
		return 0;
	for (int i = 0; i < LATE_RUNS; i++) {
		run = &t->late[i];
		if (!run->count)
			continue;
		if (!account(t, run))
			return 0;
		run->count = 0;
		t->late_count--;
	}
	return 1;
}

INLINE int on_fault_end(u64 addr, u32 op)
{
	struct thread *t = known_current();
	struct late_run fault = {.op = op, .count = 1, .low = addr, .high = addr};
	struct event near = {};

	if (!t || !mm_of(current_task()))
		return 0;
	fault.end_ns = bpf_ktime_get_ns();
	forget_page(t);
	if (op == TTFT_OP_FAULT_MAJOR && t->miss_ns && t->near.file.ino) {
		near_event(t, fault.end_ns, &near); /* the same fault, tried again after reading */
		take_back(&near);
		t->near.file.ino = 0;
	}
	fault.start_ns = op == TTFT_OP_FAULT_MAJOR && t->miss_ns ? t->miss_ns : t->fault_ns;
	t->fault_ns = 0;
	t->miss_ns = 0;
	/* One that was on its way when the programs came counts too. */
	if (!fault.start_ns && op == TTFT_OP_FAULT_MAJOR && arming(ARMING_PAGING))
		fault.start_ns = fault.end_ns;
	if (!fault.start_ns)
		return 0;
	fault.busy_ns = fault.end_ns - fault.start_ns;
	if (t->late_count)
		account_late(t);
	if (!account(t, &fault))
		keep_for_later(t, &fault);
	return 0;
}

#ifndef TTFT_PLAIN

/* These cost memory that is not a file's nothing. */

SEC("tp_btf/mm_filemap_map_pages")
int BPF_PROG(ttft_fault_near, struct address_space *mapping, unsigned long first,
	     unsigned long last)
{
	return on_near(mapping, first, last);
}

SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(ttft_fault_miss, struct address_space *mapping, unsigned long page)
{
	return on_miss(mapping, page);
}

#endif

SEC("perf_event")
int ttft_fault_major(struct bpf_perf_event_data *ctx)
{
	return on_fault_end(ctx->addr, TTFT_OP_FAULT_MAJOR);
}

/* Timing minor ones costs every fault of the process: a third of its time. */

SEC("perf_event")
int ttft_fault_begin(struct bpf_perf_event_data *ctx)
{
	return on_fault_begin();
}

SEC("perf_event")
int ttft_fault_minor(struct bpf_perf_event_data *ctx)
{
	return on_fault_end(ctx->addr, TTFT_OP_FAULT_MINOR);
}
