// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Pages of tracked files that come into the page cache: bytes from disk, whoever reads. */
#include "tracked.bpf.h"

struct run {
	u64 start, end, pages;
	u32 tgid, tid;
};

INLINE void emit_insert(const struct ttft_file_key *key, const struct run *run)
{
	struct ttft_insert *rec = reserve_record(TTFT_INSERT, sizeof(*rec));

	if (!rec)
		return;
	fill_header(&rec->h, TTFT_INSERT, run->start, (u64)run->tgid << 32 | run->tid);
	rec->file = (struct ttft_file_id){.ino = key->ino, .dev = key->dev};
	rec->end_ns = run->end;
	rec->pages = run->pages;
	submit_record(rec, false);
}

INLINE u64 *run_pages(struct ttft_file_state *state, u64 run)
{
	return run & 1 ? &state->run_pages1 : &state->run_pages0;
}

INLINE u64 *run_end(struct ttft_file_state *state, u64 run)
{
	return run & 1 ? &state->run_end1_ns : &state->run_end0_ns;
}

INLINE bool run_is_over(u64 run, u64 end, u64 now)
{
	u64 start = run >> 1;

	return !start || (now > end && now - end > options.insert_gap_ns) ||
	       (now > start && now - start > options.insert_max_ns);
}

/* Processors add to the same file at once. Whoever exchanges the run's word closes the old
 * run, and from then on all find the new one, which has a count and an end of its own: each
 * page is in exactly one run, and none in a run that was over.
 */
INLINE void add_to_run(const struct ttft_file_key *key, struct ttft_file_state *state, u64 pages)
{
	u64 now = bpf_ktime_get_ns(), who = bpf_get_current_pid_tgid();
	u64 run = state->run, next = now << 1 | (~run & 1);
	struct run old = {
		.start = run >> 1,
		.end = *run_end(state, run),
		.tgid = state->run_tgid,
		.tid = state->run_tid,
	};

	if (run_is_over(run, old.end, now)) {
		*run_end(state, next) = now;
		if (__sync_val_compare_and_swap(&state->run, run, next) == run) {
			old.pages = __sync_lock_test_and_set(run_pages(state, run), 0);
			if (old.start && old.pages)
				emit_insert(key, &old);
		}
		run = state->run;
	}
	__sync_fetch_and_add(run_pages(state, run), pages);
	*run_end(state, run) = now;
	state->run_tgid = who >> 32;
	state->run_tid = (u32)who;
}

INLINE int on_insert(struct folio *folio)
{
	struct inode *inode = folio->mapping->host;
	struct ttft_file_key key = {};
	struct ttft_file_state *state;
	u64 pages;

	if (inode->i_size < options.min_file_size)
		return 0;
	key.ino = inode->i_ino;
	key.dev = inode->i_sb->s_dev;
	state = bpf_map_lookup_elem(&files, &key);
	if (!state)
		return 0;
	pages = folio_pages(folio);
	__sync_fetch_and_add(&state->inserted, pages);
	add_to_run(&key, state, pages);
	return 0;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(ttft_insert, struct folio *folio)
{
	return on_insert(folio);
}
