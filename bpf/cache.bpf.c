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

#ifdef TTFT_PLAIN

struct closing {
	struct ttft_file_key file;
	u64 run;
};

struct { /* runs that somebody closes or has closed */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct closing);
	__type(value, u32);
} closed SEC(".maps");

/* Put `next` in the place of `run`; true to the one of several at once that does. */
INLINE bool exchange_run(const struct ttft_file_key *key, struct ttft_file_state *state, u64 run,
			 u64 next)
{
	struct closing closing = {.file = *key, .run = run};
	u32 one = 1;

	if (state->run != run || bpf_map_update_elem(&closed, &closing, &one, BPF_NOEXIST))
		return false;
	state->run = next;
	return true;
}

/* What comes in meanwhile stays for the next run that counts there. */
INLINE u64 take_pages(u64 *pages)
{
	u64 taken = *pages;

	__sync_fetch_and_add(pages, -taken);
	return taken;
}

#else

INLINE bool exchange_run(const struct ttft_file_key *key, struct ttft_file_state *state, u64 run,
			 u64 next)
{
	return __sync_val_compare_and_swap(&state->run, run, next) == run;
}

INLINE u64 take_pages(u64 *pages)
{
	return __sync_lock_test_and_set(pages, 0);
}

#endif

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
		if (exchange_run(key, state, run, next)) {
			old.pages = take_pages(run_pages(state, run));
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

INLINE int on_insert(struct inode *inode, u64 pages)
{
	struct ttft_file_key key = {};
	struct ttft_file_state *state;

	if (GET(inode, i_size) < options.min_file_size)
		return 0;
	key.ino = GET(inode, i_ino);
	key.dev = GET2(inode, i_sb, s_dev);
	state = bpf_map_lookup_elem(&files, &key);
	if (!state)
		return 0;
	__sync_fetch_and_add(&state->inserted, pages);
	add_to_run(&key, state, pages);
	return 0;
}

/* A page each, before the page cache held folios: a0580c6f9bab (5.17). */
TRACEPOINT(mm_filemap_add_to_page_cache)
int BPF_PROG(ttft_insert, struct folio *folio)
{
	struct page *page = (void *)folio;

	if (bpf_core_type_exists(struct folio))
		return on_insert(GET2(folio, mapping, host), folio_pages(folio));
	return on_insert(GET2(page, mapping, host), 1);
}
