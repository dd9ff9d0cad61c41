/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One TCP segment out of a socket buffer: its headers, and its record with payload. */
#ifndef TTFT_SEGMENTS_BPF_H
#define TTFT_SEGMENTS_BPF_H

#include "compat.bpf.h"

#define IPPROTO_HOPOPTS 0
#define IPPROTO_TCP 6
#define IPPROTO_ROUTING 43
#define IPPROTO_AH 51
#define IPPROTO_DSTOPTS 60
#define MAX_EXTENSIONS 8
#define MAX_PAYLOAD (1u << 20)
#define CHUNK 4096u

struct segment {
	struct ttft_conn conn;
	u32 payload_at;
	u32 payload_len;
	u32 seq;
	u32 ack;
	u32 tcp_flags;
	bool egress;
};

/* Addresses, and where the TCP header begins; 0: not ours to read. */
INLINE u32 parse_v4(struct __sk_buff *skb, struct segment *seg)
{
	u8 ip[20];

	if (bpf_skb_load_bytes(skb, 0, ip, sizeof(ip)) || (ip[0] & 15) < 5)
		return 0;
	if (ip[9] != IPPROTO_TCP || (ip[6] & 0x1f) || ip[7])
		return 0;
	seg->conn.family = 4;
	__builtin_memcpy(seg->egress ? seg->conn.server_addr : seg->conn.client_addr, ip + 12, 4);
	__builtin_memcpy(seg->egress ? seg->conn.client_addr : seg->conn.server_addr, ip + 16, 4);
	return (ip[0] & 15) * 4;
}

INLINE u32 parse_v6(struct __sk_buff *skb, struct segment *seg)
{
	u8 ip[40], next, extension[2];
	u32 at = sizeof(ip);

	if (bpf_skb_load_bytes(skb, 0, ip, sizeof(ip)))
		return 0;
	seg->conn.family = 6;
	__builtin_memcpy(seg->egress ? seg->conn.server_addr : seg->conn.client_addr, ip + 8, 16);
	__builtin_memcpy(seg->egress ? seg->conn.client_addr : seg->conn.server_addr, ip + 24, 16);
	next = ip[6];
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (next == IPPROTO_TCP)
			return at;
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_AH)
			return 0;
		if (bpf_skb_load_bytes(skb, at, extension, sizeof(extension)))
			return 0;
		at += next == IPPROTO_AH ? (extension[1] + 2) * 4 : (extension[1] + 1) * 8;
		next = extension[0];
	}
	return 0;
}

INLINE bool parse(struct __sk_buff *skb, struct segment *seg)
{
	u8 version, tcp[20];
	u16 source, target;
	u32 at;

	if (bpf_skb_load_bytes(skb, 0, &version, sizeof(version)))
		return false;
	if (version >> 4 == 4)
		at = parse_v4(skb, seg);
	else
		at = version >> 4 == 6 ? parse_v6(skb, seg) : 0;
	if (!at || bpf_skb_load_bytes(skb, at, tcp, sizeof(tcp)))
		return false;
	source = tcp[0] << 8 | tcp[1];
	target = tcp[2] << 8 | tcp[3];
	seg->conn.server_port = seg->egress ? source : target;
	seg->conn.client_port = seg->egress ? target : source;
	seg->seq = (u32)tcp[4] << 24 | tcp[5] << 16 | tcp[6] << 8 | tcp[7];
	seg->ack = (u32)tcp[8] << 24 | tcp[9] << 16 | tcp[10] << 8 | tcp[11];
	seg->tcp_flags = tcp[13];
	seg->payload_at = at + (tcp[12] >> 4) * 4;
	if (tcp[12] >> 4 < 5 || seg->payload_at > skb->len)
		return false;
	seg->payload_len = skb->len - seg->payload_at;
	return true;
}

/* A request's first bytes hurry: while none is open, the reader sleeps. */
INLINE bool asks(const struct segment *seg)
{
	return !seg->egress && seg->payload_len && reader_sleeps();
}

INLINE void fill_packet(struct ttft_packet *rec, const struct segment *seg, u64 now, u32 captured)
{
	fill_header(&rec->h, TTFT_PACKET, now, 0);
	rec->h.flags = (seg->egress ? TTFT_PACKET_EGRESS : 0) |
		       (captured < seg->payload_len ? TTFT_PACKET_CUT : 0);
	rec->conn = seg->conn;
	rec->seq = seg->seq;
	rec->ack = seg->ack;
	rec->payload_len = seg->payload_len;
	rec->captured = captured;
	rec->tcp_flags = seg->tcp_flags;
}

/* A record with room for `room` bytes of payload, a constant. The length is checked without
 * its last byte: older verifiers learn nothing from `length != 0`.
 */
#define SEND_FIXED(skb, seg, now, room)                                                            \
	do {                                                                                       \
		struct {                                                                           \
			struct ttft_packet packet;                                                 \
			u8 payload[room];                                                          \
		} *rec_ = bpf_ringbuf_reserve(&packets, sizeof(*rec_), 0);                         \
		u32 n_ = (seg)->payload_len;                                                       \
		u64 last_;                                                                         \
		if (!rec_) {                                                                       \
			count_lost(TTFT_PACKET, TTFT_LOSS_RING);                                   \
			return;                                                                    \
		}                                                                                  \
		if (n_ > (room))                                                                   \
			n_ = (room);                                                               \
		last_ = (u64)n_ - 1;                                                               \
		barrier_var(last_);                                                                \
		if (last_ >= (room) ||                                                             \
		    bpf_skb_load_bytes(skb, (seg)->payload_at, rec_->payload, last_ + 1))          \
			n_ = 0;                                                                    \
		fill_packet(&rec_->packet, seg, now, n_);                                          \
		bpf_ringbuf_submit(rec_, wake_flags(&packets, asks(seg)));                         \
	} while (0)

#ifndef TTFT_PLAIN

struct copy {
	struct bpf_dynptr rec;
	struct __sk_buff *skb;
	u32 from;
	u32 length;
	u32 done;
};

static long copy_chunk(u32 index, void *context)
{
	struct copy *copy = context;
	u32 at = index * CHUNK, left = copy->length - at;
	u64 last;
	void *slice;

	if (at >= copy->length)
		return 1;
	slice = bpf_dynptr_data(&copy->rec, sizeof(struct ttft_packet) + at, CHUNK);
	if (!slice)
		return 1;
	if (left > CHUNK)
		left = CHUNK;
	last = (u64)left - 1;
	barrier_var(last);
	if (last >= CHUNK || bpf_skb_load_bytes(copy->skb, copy->from + at, slice, last + 1))
		return 1;
	copy->done = at + left;
	return 0;
}

/* Of any size: chunk by chunk into a record of whole chunks. */
INLINE void send_large(struct __sk_buff *skb, const struct segment *seg, u64 now)
{
	struct copy copy = {.skb = skb, .from = seg->payload_at, .length = seg->payload_len};
	struct ttft_packet *head;
	u32 chunks;

	if (copy.length > MAX_PAYLOAD)
		copy.length = MAX_PAYLOAD;
	chunks = (copy.length + CHUNK - 1) / CHUNK;
	if (bpf_ringbuf_reserve_dynptr(&packets, sizeof(*head) + chunks * CHUNK, 0, &copy.rec)) {
		count_lost(TTFT_PACKET, TTFT_LOSS_RING);
		bpf_ringbuf_discard_dynptr(&copy.rec, 0);
		return;
	}
	bpf_loop(chunks, copy_chunk, &copy, 0);
	head = bpf_dynptr_data(&copy.rec, 0, sizeof(*head));
	if (head)
		fill_packet(head, seg, now, copy.done);
	bpf_ringbuf_submit_dynptr(&copy.rec, wake_flags(&packets, asks(seg)));
}

#endif

/* Room by class: a reserve of another size needs a dynptr, which costs more. */
INLINE void send_segment(struct __sk_buff *skb, const struct segment *seg)
{
	u64 now = bpf_ktime_get_ns();

	if (seg->payload_len == 0)
		SEND_FIXED(skb, seg, now, 8);
	else if (seg->payload_len <= 512)
		SEND_FIXED(skb, seg, now, 512);
	else if (seg->payload_len <= CHUNK)
		SEND_FIXED(skb, seg, now, CHUNK);
#ifndef TTFT_PLAIN
	else if (has_dynptr())
		send_large(skb, seg, now);
#endif
	else if (seg->payload_len <= 16384)
		SEND_FIXED(skb, seg, now, 16384);
	else if (seg->payload_len <= 32768)
		SEND_FIXED(skb, seg, now, 32768);
	else
		SEND_FIXED(skb, seg, now, 65536);
}

#endif
