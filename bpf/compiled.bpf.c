// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Opens of files in compile caches: a look-up, and a write where the look-up found nothing.
 *
 * By the entries of open() in the C library of watched processes alone, so nobody else pays, and
 * it is there while the probes on system calls are not. Whether the file was there is not seen:
 * a write of the same name later says that it was not.
 */
#include "compat.bpf.h"
#include "maps.h"

#define NAME_MAX 256

struct { /* folders of caches, as the processes name them */
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct ttft_folder_key);
	__type(value, u32);
} cache_folders SEC(".maps");

struct path_buffer {
	struct ttft_folder_key key;
	char path[NAME_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct path_buffer);
} paths SEC(".maps");

/* The name without its endings: what is written under another one first has the same. */
INLINE u64 stem_of(const char *path)
{
	u64 hash = 0xcbf29ce484222325ull;
	bool ending = false;
	char c;

	for (u32 i = 0; i < NAME_MAX; i++) {
		c = path[i];
		if (!c)
			return hash;
		if (c == '/')
			ending = false;
		else if (c == '.')
			ending = true;
		if (!ending)
			hash = (hash ^ (u8)c) * 0x100000001b3ull;
	}
	return hash;
}

INLINE int on_cache_open(u64 name, u64 flags)
{
	u64 now = bpf_ktime_get_ns();
	struct task_struct *task = current_task();
	struct path_buffer *buffer;
	struct ttft_cached *rec;
	u32 *folder;

	if (!is_watched(task))
		return 0;
	buffer = bpf_task_storage_get(&paths, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!buffer || bpf_probe_read_user_str(buffer->path, NAME_MAX, (void *)name) <= 0)
		return 0;
	buffer->key.bits = 8 * TTFT_FOLDER_LEN;
	__builtin_memcpy(buffer->key.path, buffer->path, TTFT_FOLDER_LEN);
	folder = bpf_map_lookup_elem(&cache_folders, &buffer->key);
	if (!folder)
		return 0;
	rec = reserve_record(TTFT_CACHED, sizeof(*rec));
	if (!rec)
		return 0;
	fill_header(&rec->h, TTFT_CACHED, now, bpf_get_current_pid_tgid());
	rec->stem = stem_of(buffer->path);
	rec->folder = *folder;
	rec->open_flags = flags;
	submit_record(rec, false);
	return 0;
}

#if defined(__TARGET_ARCH_x86)
#define FIRST(ctx) (((struct pt_regs___user *)(ctx))->di)
#define SECOND(ctx) (((struct pt_regs___user *)(ctx))->si)
#define THIRD(ctx) (((struct pt_regs___user *)(ctx))->dx)
#else
#define FIRST(ctx) (((struct user_pt_regs *)(ctx))->regs[0])
#define SECOND(ctx) (((struct user_pt_regs *)(ctx))->regs[1])
#define THIRD(ctx) (((struct user_pt_regs *)(ctx))->regs[2])
#endif

SEC("uprobe")
int ttft_open(void *ctx)
{
	return on_cache_open(FIRST(ctx), SECOND(ctx));
}

SEC("uprobe")
int ttft_openat(void *ctx)
{
	return on_cache_open(SECOND(ctx), THIRD(ctx));
}
