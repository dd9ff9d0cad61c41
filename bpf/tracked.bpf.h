/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which files are followed, and how a struct file becomes an identity. */
#ifndef TTFT_TRACKED_BPF_H
#define TTFT_TRACKED_BPF_H

#include "compat.bpf.h"
#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ttft_file_key);
	__type(value, struct ttft_file_state);
} files SEC(".maps");

struct { /* struct file to token: the newest open() through that address */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u32);
} tokens SEC(".maps");

/* Grows when a tracked file is opened: what threads remember of a struct file is void then. */
u64 open_generation;

#define VMA_SLOTS 2

struct vma_slot {	/* what a thread remembers of a mapping */
	u64 start, end; /* end 0: nothing */
	u64 generation;
	u64 pgoff;
	struct ttft_file_id file; /* ino 0: not a tracked file */
};

#ifdef TTFT_PLAIN
#define LATE_RUNS 2 /* verified at each place; there the fault itself holds the lock */
#else
#define LATE_RUNS 8
#endif
#define LATE_REACH (1 << 20) /* faults this near to each other join a run */

struct late_run { /* faults whose mapping could not be told when they ended */
	u64 low, high;
	u64 start_ns, end_ns, busy_ns;
	u32 count;
	u32 op;
};

struct near_fault {		  /* the last one served from the page cache around it */
	struct ttft_file_id file; /* ino 0: none */
	u64 first, last;	  /* pages */
};

struct own_fault { /* the one it is in, where its begin is told the mapping */
	struct ttft_file_id file;
	u64 addr;
	u64 first, len; /* the mapping, where it begins with the file's first byte; else 0 */
};

struct thread {
	/* the system call it is in */
	u64 enter_ns;
	u32 call;   /* number + 1; 0: none that is looked at */
	u32 wanted; /* it is about a tracked file */
	struct ttft_file_id file;
	u32 op;
	u32 want_magic;
	/* the tracked file it used last */
	u64 seen_ptr;
	u64 seen_generation;
	struct ttft_file_id seen;
	u32 seen_magic;
	u32 next_slot;
	u32 seen_elf;
	u32 arming; /* in which it was last seen to begin a call */
	/* the fault it is in */
	u64 fault_ns; /* any fault, while minor ones are watched */
	struct own_fault fault;
	struct near_fault near;
	u64 miss_ns; /* one that found no page mapped nearby */
	u64 told_ns; /* when one without a begin was told at once */
	u32 paging;  /* arming of these programs in which miss_ns and near were set */
	u32 reserved;
	u64 late_count;
	struct late_run late[LATE_RUNS];
	struct vma_slot slots[VMA_SLOTS];
};

#ifdef TTFT_PLAIN

struct { /* threads of watched processes, by thread id */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct { /* what a new entry is made from: too large for the stack */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct thread);
} no_thread SEC(".maps");

INLINE struct thread *known_current(void)
{
	u32 tid = bpf_get_current_pid_tgid();

	return bpf_map_lookup_elem(&threads, &tid);
}

INLINE struct thread *thread_of_current(void)
{
	u32 tid = bpf_get_current_pid_tgid(), zero = 0;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid), *empty;

	if (t)
		return t;
	empty = bpf_map_lookup_elem(&no_thread, &zero);
	if (!empty)
		return NULL;
	if (bpf_map_update_elem(&threads, &tid, empty, BPF_NOEXIST))
		count_lost(TTFT_SPAN, TTFT_LOSS_TABLE);
	return bpf_map_lookup_elem(&threads, &tid);
}

INLINE struct thread *known_thread(struct task_struct *task)
{
	u32 tid = BPF_CORE_READ(task, pid);

	return bpf_map_lookup_elem(&threads, &tid);
}

INLINE void forget_thread(u32 tid)
{
	bpf_map_delete_elem(&threads, &tid);
}

#else

struct { /* threads of watched processes */
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

INLINE struct thread *known_thread(struct task_struct *task)
{
	return task->bpf_storage ? bpf_task_storage_get(&threads, task, NULL, 0) : NULL;
}

INLINE struct thread *known_current(void)
{
	return known_thread(current_task());
}

INLINE struct thread *thread_of_current(void)
{
	struct thread *t = bpf_task_storage_get(&threads, current_task(), NULL,
						BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		count_lost(TTFT_SPAN, TTFT_LOSS_TABLE);
	return t;
}

INLINE void forget_thread(u32 tid)
{
	/* It goes with the task. */
}

#endif

/* Programs that come and go: grows as they do, odd while they are attached, 0 where they never
 * were. What a thread remembers of another arming is void.
 */
#define ARMING_FILES 0
#define ARMING_PAGING 1
#define ARMING_DEVICES 2

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, u32);
	__type(value, u32);
} armings SEC(".maps");

INLINE u32 arming(u32 which)
{
	u32 *now = bpf_map_lookup_elem(&armings, &which);

	return now ? *now : 0;
}

struct file_facts {
	u64 ptr;
	u64 size;
	u64 ino;
	u64 pos;
	u32 dev;
	u32 flags;
	u32 generation;
	u32 mode;
};

INLINE unsigned long super_magic(u64 ptr)
{
	struct file *file = (void *)ptr;

#ifndef TTFT_PLAIN
	if (options.rdonly_cast)
		return CAST(file, file)->f_inode->i_sb->s_magic;
#endif
	return BPF_CORE_READ(file, f_inode, i_sb, s_magic);
}

INLINE void read_inode(u64 ptr, struct file_facts *f)
{
	struct file *file = (void *)ptr;
	struct inode *inode;

#ifndef TTFT_PLAIN
	if (options.rdonly_cast) {
		inode = CAST(file, file)->f_inode;
		f->mode = inode->i_mode;
		f->size = inode->i_size;
		f->ino = inode->i_ino;
		f->dev = inode->i_sb->s_dev;
		f->generation = inode->i_generation;
		return;
	}
#endif
	inode = BPF_CORE_READ(file, f_inode);
	f->mode = BPF_CORE_READ(inode, i_mode);
	f->size = BPF_CORE_READ(inode, i_size);
	f->ino = BPF_CORE_READ(inode, i_ino);
	f->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	f->generation = BPF_CORE_READ(inode, i_generation);
}

INLINE void read_facts(u64 ptr, struct file_facts *f)
{
	struct file *file = (void *)ptr;

#ifndef TTFT_PLAIN
	if (options.rdonly_cast) {
		file = CAST(file, file);
		f->flags = file->f_flags;
		f->pos = file->f_pos;
	} else
#endif
	{
		f->flags = BPF_CORE_READ(file, f_flags);
		f->pos = BPF_CORE_READ(file, f_pos);
	}
	f->ptr = super_magic(ptr) == OVERLAYFS_SUPER_MAGIC ? real_file(ptr) : ptr;
	read_inode(f->ptr, f);
}

/* Facts about a regular file large enough to follow. */
INLINE bool file_facts(u64 ptr, struct file_facts *f)
{
	if (!ptr)
		return false;
	read_facts(ptr, f);
	return (f->mode & S_IFMT) == S_IFREG && f->size >= options.min_file_size;
}

INLINE u64 file_of_fd(struct task_struct *task, s64 fd)
{
	struct fdtable *table = fdtable_of(task);
	u64 ptr = 0;

	if (!table || fd < 0 || fd >= GET(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&ptr, sizeof(ptr), GET(table, fd) + fd);
	return ptr;
}

INLINE u32 mix(u64 x)
{
	x ^= options.token_secret;
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	x ^= x >> 33;
	return (u32)x ? (u32)x : 1;
}

INLINE u32 file_token(u64 ptr)
{
	u32 *known = bpf_map_lookup_elem(&tokens, &ptr), token;

	if (known)
		return *known;
	token = mix(ptr);
	bpf_map_update_elem(&tokens, &ptr, &token, BPF_NOEXIST);
	return token;
}

/* A further open() gives the same struct file another token. */
INLINE void new_token(u64 ptr)
{
	u32 token = mix(ptr + ((u64)bpf_get_prandom_u32() << 32));

	bpf_map_update_elem(&tokens, &ptr, &token, BPF_ANY);
	__sync_fetch_and_add(&open_generation, 1);
}

INLINE void emit_file(const struct file_facts *f, u32 token, s32 fd, u64 user_name, u64 now)
{
	struct ttft_file *rec = reserve_record(TTFT_FILE, sizeof(*rec));

	if (!rec)
		return;
	fill_header(&rec->h, TTFT_FILE, now, bpf_get_current_pid_tgid());
	rec->file = (struct ttft_file_id){.ino = f->ino, .dev = f->dev, .token = token};
	rec->size = f->size;
	rec->fd = fd;
	rec->reserved = 0;
	rec->name[0] = 0;
	if (user_name &&
	    bpf_probe_read_user_str(rec->name, sizeof(rec->name), (void *)user_name) < 0)
		rec->name[0] = 0;
	submit_record(rec, true);
}

static const volatile struct ttft_file_state no_file; /* too large for the stack */

/* The state of a file, begun at first sight; NULL when the table is full. */
INLINE struct ttft_file_state *track(const struct file_facts *f, u32 token, s32 fd, u64 user_name,
				     u64 now)
{
	struct ttft_file_key key = {.ino = f->ino, .dev = f->dev};
	struct ttft_file_state *state = bpf_map_lookup_elem(&files, &key);

	if (state && state->generation == f->generation && state->size == f->size)
		return state;
	if (!state) {
		if (bpf_map_update_elem(&files, &key, (void *)&no_file, BPF_NOEXIST) == -E2BIG)
			count_lost(TTFT_FILE, TTFT_LOSS_TABLE);
		state = bpf_map_lookup_elem(&files, &key);
		if (!state)
			return NULL;
	} else if (state->generation != f->generation) { /* the number was used again */
		state->magic = 0;
	}
	state->generation = f->generation;
	state->size = f->size; /* it may have grown */
	emit_file(f, token, fd, user_name, now);
	return state;
}

/* Identity of a file the thread uses, tracked from now on; 0: not followed. */
GLOBAL int resolve(struct thread *t, struct file_facts *f, s32 fd, struct ttft_file_id *id)
{
	struct ttft_file_state *state;
	u64 generation = open_generation;
	u32 token;

	if (!t || !f || !id)
		return 0;
	if (t->seen_ptr == f->ptr && t->seen.ino == f->ino && t->seen.dev == f->dev &&
	    t->seen_generation == generation) {
		*id = t->seen;
		return 1;
	}
	token = file_token(f->ptr);
	state = track(f, token, fd, 0, bpf_ktime_get_ns());
	if (!state)
		return 0;
	id->ino = f->ino;
	id->dev = f->dev;
	id->token = token;
	t->seen_ptr = f->ptr;
	t->seen_generation = generation;
	t->seen = *id;
	t->seen_magic = state->magic;
	t->seen_elf = state->elf;
	return 1;
}

/* First bytes of a file out of the process's own memory, where `len` of them lie. */
GLOBAL int take_magic(struct thread *t, struct ttft_file_id *id, u64 user, u64 len)
{
	u32 want = len < TTFT_MAGIC_LEN ? (u32)len & (TTFT_MAGIC_LEN - 1) : TTFT_MAGIC_LEN;
	struct ttft_file_state *state;
	struct ttft_file_key key = {};
	struct ttft_magic *rec;

	if (!t || !id)
		return 0;
	key.ino = id->ino;
	key.dev = id->dev;
	state = bpf_map_lookup_elem(&files, &key);
	if (!state)
		return 0;
	t->seen_magic = state->magic;
	if (state->magic == 2 || want < 4 || (state->magic == 1 && want < TTFT_MAGIC_LEN))
		return 0;
	rec = reserve_record(TTFT_MAGIC, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_MAGIC, bpf_ktime_get_ns(), bpf_get_current_pid_tgid());
	rec->h.flags = want;
	rec->file = *id;
	__builtin_memset(rec->bytes, 0, sizeof(rec->bytes));
	if (bpf_probe_read_user(rec->bytes, want, (void *)user)) {
		bpf_ringbuf_discard(rec, BPF_RB_NO_WAKEUP); /* not there yet: tried again later */
		return 0;
	}
	state->magic = want == TTFT_MAGIC_LEN ? 2 : 1;
	state->elf = rec->bytes[0] == 0x7f && rec->bytes[1] == 'E';
	t->seen_elf = state->elf;
	t->seen_magic = state->magic;
	submit_record(rec, true);
	return 1;
}

#endif
