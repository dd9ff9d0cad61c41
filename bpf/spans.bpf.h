/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Runs of like events become one record; totals stay exact whatever is lost. */
#ifndef TTFT_SPANS_BPF_H
#define TTFT_SPANS_BPF_H

#include "tracked.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct ttft_span_key);
	__type(value, struct ttft_span_state);
} spans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct ttft_total_key);
	__type(value, struct ttft_total);
} totals SEC(".maps");

struct event {
	struct ttft_file_id file;
	u64 start_ns, end_ns, busy_ns, bytes;
	u64 tgid_tid;
	u32 op, flags;
	u32 count; /* more than one: faults told late */
};

INLINE void add_total(const struct event *e)
{
	struct ttft_total_key key = {
		.ino = e->file.ino,
		.dev = e->file.dev,
		.tgid = e->tgid_tid >> 32,
		.op = e->op,
	};
	struct ttft_total *total = bpf_map_lookup_elem(&totals, &key), zero = {};

	if (!total) {
		bpf_map_update_elem(&totals, &key, &zero, BPF_NOEXIST);
		total = bpf_map_lookup_elem(&totals, &key);
		if (!total) {
			count_lost(TTFT_SPAN, TTFT_LOSS_TABLE);
			return;
		}
	}
	__sync_fetch_and_add(&total->count, e->count);
	__sync_fetch_and_add(&total->bytes, e->bytes);
	__sync_fetch_and_add(&total->busy_ns, e->busy_ns);
}

INLINE void emit_span(const struct ttft_span_key *key, const struct ttft_span_state *s, bool urgent)
{
	struct ttft_span *rec;

	if (!s->count)
		return;
	rec = reserve_record(TTFT_SPAN, sizeof(*rec));
	if (!rec)
		return;
	fill_header(&rec->h, TTFT_SPAN, s->start_ns, (u64)s->tgid << 32 | key->tid);
	rec->h.flags = s->flags;
	rec->file = (struct ttft_file_id){.ino = key->ino, .dev = key->dev, .token = s->token};
	rec->end_ns = s->end_ns;
	rec->busy_ns = s->busy_ns;
	rec->bytes = s->bytes;
	rec->count = s->count;
	rec->op = key->op;
	submit_record(rec, urgent);
}

INLINE bool span_continues(const struct ttft_span_state *s, const struct event *e)
{
	return s->token == e->file.token && s->flags == e->flags &&
	       s->tgid == (u32)(e->tgid_tid >> 32) && e->start_ns >= s->end_ns &&
	       e->start_ns - s->end_ns <= options.span_gap_ns &&
	       e->end_ns - s->start_ns <= options.span_max_ns;
}

INLINE void begin_span(struct ttft_span_state *s, const struct event *e)
{
	s->tgid = e->tgid_tid >> 32;
	s->token = e->file.token;
	s->flags = e->flags;
	s->start_ns = e->start_ns;
	s->end_ns = e->end_ns;
	s->busy_ns = e->busy_ns;
	s->bytes = e->bytes;
	s->count = e->count;
}

INLINE void add_event(const struct event *e)
{
	struct ttft_span_key key = {
		.ino = e->file.ino,
		.dev = e->file.dev,
		.tid = (u32)e->tgid_tid,
		.op = e->op,
	};
	struct ttft_span_state *s, fresh = {};

	add_total(e);
	s = bpf_map_lookup_elem(&spans, &key);
	if (!s) {
		begin_span(&fresh, e);
		if (bpf_map_update_elem(&spans, &key, &fresh, BPF_NOEXIST))
			count_lost(TTFT_SPAN, TTFT_LOSS_TABLE);
		return;
	}
	s->begin++;
	barrier();
	if (span_continues(s, e)) {
		s->end_ns = e->end_ns;
		s->busy_ns += e->busy_ns;
		s->bytes += e->bytes;
		s->count += e->count;
	} else {
		emit_span(&key, s, false);
		begin_span(s, e);
	}
	barrier();
	s->end = s->begin;
}

/* Take the last event back: it was part of one of another kind. Nothing came after it. */
INLINE void take_back(const struct event *e)
{
	struct ttft_total_key total_key = {
		.ino = e->file.ino,
		.dev = e->file.dev,
		.tgid = e->tgid_tid >> 32,
		.op = e->op,
	};
	struct ttft_span_key key = {
		.ino = e->file.ino,
		.dev = e->file.dev,
		.tid = (u32)e->tgid_tid,
		.op = e->op,
	};
	struct ttft_total *total = bpf_map_lookup_elem(&totals, &total_key);
	struct ttft_span_state *s = bpf_map_lookup_elem(&spans, &key);

	if (total) {
		__sync_fetch_and_add(&total->count, -(u64)e->count);
		__sync_fetch_and_add(&total->bytes, -e->bytes);
	}
	if (!s || !s->count)
		return;
	s->begin++;
	barrier();
	s->count -= e->count;
	s->bytes -= e->bytes;
	barrier();
	s->end = s->begin;
}

/* An event that is a span of its own, told at once. */
INLINE void tell_event(const struct event *e, bool urgent)
{
	struct ttft_span_key key = {
		.ino = e->file.ino,
		.dev = e->file.dev,
		.tid = (u32)e->tgid_tid,
		.op = e->op,
	};
	struct ttft_span_state single = {};

	add_total(e);
	begin_span(&single, e);
	emit_span(&key, &single, urgent);
}

#endif
