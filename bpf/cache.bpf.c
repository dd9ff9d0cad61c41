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

/* Processors add to the same run at once: who wins the exchange of the start closes it, as
 * it was when it was found to be over, and each page is in exactly one run.
 */
INLINE void add_to_run(const struct ttft_file_key *key, struct ttft_file_state *state, u64 pages)
{
	u64 now = bpf_ktime_get_ns(), who = bpf_get_current_pid_tgid();
	struct run old = {
		.start = state->run_start_ns,
		.end = state->run_end_ns,
		.tgid = state->run_tgid,
		.tid = state->run_tid,
	};
	bool over = !old.start || (now > old.end && now - old.end > options.insert_gap_ns) ||
		    (now > old.start && now - old.start > options.insert_max_ns);

	if (over &&
	    __sync_val_compare_and_swap(&state->run_start_ns, old.start, now) == old.start) {
		old.pages = __sync_lock_test_and_set(&state->run_pages, pages);
		if (!old.start) /* another processor came between */
			__sync_fetch_and_add(&state->run_pages, old.pages);
		else if (old.pages)
			emit_insert(key, &old);
	} else {
		__sync_fetch_and_add(&state->run_pages, pages);
	}
	state->run_end_ns = now;
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
