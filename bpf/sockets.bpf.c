// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Segments of watched ports with their payload; who listens, connects and takes bytes. */
#include "compat.bpf.h"
#include "maps.h"
#include "segments.bpf.h"
#include <bpf/bpf_endian.h>

#define AF_INET 2
#define AF_INET6 10
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP_TIME_WAIT 6
#define TCP_CLOSE 7
#define TCP_LISTEN 10
#define TCP_NEW_SYN_RECV 12
#define TCP_FLAG_FIN 1
#define TCP_FLAG_SYN 2
#define TCP_FLAG_RST 4

struct { /* listening ports of watched servers */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct ttft_port_key);
	__type(value, struct ttft_port);
} ports SEC(".maps");

struct { /* of the configuration: whoever listens there is a server */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u32);
} server_ports SEC(".maps");

/* By the low bits of a port, 1: perhaps watched. An array look-up is inlined, so traffic
 * of other ports pays next to nothing. Never cleared: a stale one costs a hash look-up.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TTFT_PORT_HINTS);
	__type(key, u32);
	__type(value, u64);
} port_hints SEC(".maps");

struct { /* connections with bytes that arrived and were not taken yet */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct ttft_conn);
	__type(value, u32);
} untaken SEC(".maps");

struct { /* cgroups whose sockets' segments are seen, or that user space was told of */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u32);
} seen_cgroups SEC(".maps");

struct { /* sockets that are connecting, to the thread that called connect() */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u64);
} connecting SEC(".maps");

INLINE bool port_hinted(u32 port)
{
	u32 slot = port & (TTFT_PORT_HINTS - 1);
	u64 *hint = bpf_map_lookup_elem(&port_hints, &slot);

	return hint && *hint;
}

INLINE struct ttft_port *port_watched(u32 netns, u16 port)
{
	struct ttft_port_key key = {.netns = netns, .port = port};

	return bpf_map_lookup_elem(&ports, &key);
}

INLINE u32 netns_of(struct sock *sk)
{
	return GET2(sk, __sk_common.skc_net.net, ns.inum);
}

/* --- segments --- */

/* 0 where there is no socket yet, but one that only waits for the handshake. */
INLINE u32 netns_of_segment(struct bpf_sock *given)
{
#ifdef TTFT_PLAIN
	struct bpf_sock *held = given;
	struct sock *sk = NULL;
	u8 state;

	if (!given)
		return 0;
	bpf_probe_read_kernel(&sk, sizeof(sk), &held); /* a number: fields of it can be read */
	state = GET(sk, __sk_common.skc_state);
	if (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV)
		return 0;
	return netns_of(sk);
#else
	struct tcp_sock *tcp = given ? bpf_skc_to_tcp_sock(given) : NULL;

	return tcp ? netns_of((struct sock *)tcp) : 0;
#endif
}

INLINE void on_segment(struct __sk_buff *skb, bool egress)
{
	struct segment seg = {.egress = egress};
	u32 arrived = 1;

	if (!parse(skb, &seg))
		return;
	/* The client's bare acknowledgements say nothing that its next segment does not. */
	if (!egress && !seg.payload_len &&
	    !(seg.tcp_flags & (TCP_FLAG_SYN | TCP_FLAG_FIN | TCP_FLAG_RST)))
		return;
	seg.conn.netns = netns_of_segment(skb->sk);
	if (!port_watched(seg.conn.netns, seg.conn.server_port))
		return;
	if (!egress && seg.payload_len)
		bpf_map_update_elem(&untaken, &seg.conn, &arrived, BPF_ANY);
	send_segment(skb, &seg);
}

/* --- sockets --- */

INLINE void copy_addresses(struct sock_common *sk, struct ttft_conn *conn, u8 *local, u8 *remote)
{
	u32 *ours = (u32 *)local, *theirs = (u32 *)remote;

	if (GET(sk, skc_family) == AF_INET) {
		conn->family = 4;
		ours[0] = GET(sk, skc_rcv_saddr);
		theirs[0] = GET(sk, skc_daddr);
		return;
	}
	conn->family = 6;
	for (int i = 0; i < 4; i++) {
		ours[i] = GET(sk, skc_v6_rcv_saddr.in6_u.u6_addr32[i]);
		theirs[i] = GET(sk, skc_v6_daddr.in6_u.u6_addr32[i]);
	}
	/* An IPv4 client of an IPv6 socket: its packets are IPv4. */
	if (theirs[0] || theirs[1] || theirs[2] != bpf_htonl(0xffff))
		return;
	conn->family = 4;
	ours[0] = ours[3];
	theirs[0] = theirs[3];
	ours[1] = ours[2] = ours[3] = theirs[1] = theirs[2] = theirs[3] = 0;
}

INLINE void server_end(struct sock *sk, struct ttft_conn *conn)
{
	struct sock_common *common = &sk->__sk_common;

	copy_addresses(common, conn, conn->server_addr, conn->client_addr);
	conn->netns = netns_of(sk);
	conn->server_port = GET(common, skc_num);
	conn->client_port = bpf_ntohs(GET(common, skc_dport));
}

INLINE void client_end(struct sock *sk, struct ttft_conn *conn)
{
	struct sock_common *common = &sk->__sk_common;

	copy_addresses(common, conn, conn->client_addr, conn->server_addr);
	conn->netns = netns_of(sk);
	conn->server_port = bpf_ntohs(GET(common, skc_dport));
	conn->client_port = GET(common, skc_num);
}

/* Of a closing socket too, which has no skc_num any more if the kernel chose its port. */
INLINE struct ttft_port_key listening_port(struct sock *sk)
{
	struct ttft_port_key key = {.netns = netns_of(sk)};

	key.port = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
	return key;
}

INLINE void send_listen(struct sock *sk, u16 port, u32 flags)
{
	struct ttft_listen *rec = reserve_record(TTFT_LISTEN, sizeof(*rec));
	struct ttft_conn conn = {};

	if (!rec)
		return;
	server_end(sk, &conn);
	conn.server_port = port;
	conn.client_port = 0;
	__builtin_memset(conn.client_addr, 0, sizeof(conn.client_addr));
	fill_header(&rec->h, TTFT_LISTEN, bpf_ktime_get_ns(), bpf_get_current_pid_tgid());
	rec->h.flags = flags;
	rec->conn = conn;
	rec->reserved = 0;
	rec->cgroup = cgroup_of(sk);
	submit_record(rec, true);
}

INLINE void watch_port(const struct ttft_port_key *key)
{
	struct ttft_port first = {.tgid = bpf_get_current_pid_tgid() >> 32, .listeners = 1}, *known;
	u32 slot = key->port & (TTFT_PORT_HINTS - 1);
	u64 one = 1;

	known = bpf_map_lookup_elem(&ports, key);
	if (known)
		__sync_fetch_and_add(&known->listeners, 1);
	else if (bpf_map_update_elem(&ports, key, &first, BPF_ANY))
		count_lost(TTFT_LISTEN, TTFT_LOSS_TABLE);
	bpf_map_update_elem(&port_hints, &slot, &one, BPF_ANY);
}

/* Not init, which listens for services that it starts when they are asked for. */
INLINE bool is_server_port(u16 port)
{
	u32 key = port;

	return bpf_map_lookup_elem(&server_ports, &key) && bpf_get_current_pid_tgid() >> 32 != 1;
}

/* A stranger may turn out to be a server: user space decides by what it is. */
INLINE void on_listen(struct sock *sk)
{
	struct ttft_port_key key = {.netns = netns_of(sk), .port = GET(sk, __sk_common.skc_num)};

	if (current_watched() || is_server_port(key.port))
		watch_port(&key);
	send_listen(sk, key.port, 0);
}

/* Several sockets may listen on one port; the last one closes it. */
INLINE void on_unlisten(struct sock *sk)
{
	struct ttft_port_key key = listening_port(sk);
	struct ttft_port *known = bpf_map_lookup_elem(&ports, &key);

	if (!known)
		return;
	if (known->listeners > 1) {
		__sync_fetch_and_add(&known->listeners, -1);
		return;
	}
	bpf_map_delete_elem(&ports, &key);
	send_listen(sk, key.port, TTFT_LISTEN_CLOSED);
}

/* A socket belongs to the cgroup that its process was in at socket(), an accepted one to its
 * listener's: of one that nobody named, no segment is seen until user space hears of it.
 */
INLINE void on_watched(struct sock *sk, u16 port)
{
	u64 cgroup = cgroup_of(sk);
	u32 told = 0;

	if (!cgroup || bpf_map_lookup_elem(&seen_cgroups, &cgroup))
		return;
	if (!bpf_map_update_elem(&seen_cgroups, &cgroup, &told, BPF_NOEXIST))
		send_listen(sk, port, TTFT_LISTEN_UNSEEN);
}

INLINE void on_accepting(struct sock *sk)
{
	u16 port = GET(sk, __sk_common.skc_num);

	if (port_hinted(port) && port_watched(netns_of(sk), port))
		on_watched(sk, port);
}

INLINE void on_connecting(struct sock *sk)
{
	u64 key = (u64)sk, who = bpf_get_current_pid_tgid();

	if (current_watched())
		bpf_map_update_elem(&connecting, &key, &who, BPF_ANY);
}

/* Maybe in softirq: who it is was kept when connect() was called, the port is known now. */
INLINE void on_connected(struct sock *sk, bool established)
{
	struct ttft_conn conn = {};
	struct ttft_connect *rec;
	u64 key = (u64)sk, who, *kept = bpf_map_lookup_elem(&connecting, &key);

	if (!kept)
		return;
	who = *kept;
	bpf_map_delete_elem(&connecting, &key);
	if (!established)
		return;
	rec = reserve_record(TTFT_CONNECT, sizeof(*rec));
	if (!rec)
		return;
	client_end(sk, &conn);
	fill_header(&rec->h, TTFT_CONNECT, bpf_ktime_get_ns(), who);
	rec->conn = conn;
	rec->reserved = 0;
	submit_record(rec, false);
}

INLINE int on_state(struct sock *sk, int old, int state)
{
	if (GET(sk, sk_protocol) != IPPROTO_TCP)
		return 0;
	if (state == TCP_LISTEN)
		on_listen(sk);
	else if (old == TCP_LISTEN && state == TCP_CLOSE)
		on_unlisten(sk);
	else if (old == TCP_SYN_RECV && state == TCP_ESTABLISHED)
		on_accepting(sk);
	else if (state == TCP_SYN_SENT)
		on_connecting(sk);
	else if (old == TCP_SYN_SENT)
		on_connected(sk, state == TCP_ESTABLISHED);
	return 0;
}

INLINE void send_take(struct sock *sk)
{
	u64 now = bpf_ktime_get_ns(), who = bpf_get_current_pid_tgid();
	struct ttft_conn conn = {};
	struct ttft_take *rec;

	server_end(sk, &conn);
	if (!(who >> 32) || bpf_map_delete_elem(&untaken, &conn))
		return;
	rec = reserve_record(TTFT_TAKE, sizeof(*rec));
	if (!rec)
		return;
	fill_header(&rec->h, TTFT_TAKE, now, who);
	rec->conn = conn;
	rec->reserved = 0;
	submit_record(rec, false);
}

INLINE int on_take(struct sock *sk)
{
	if (port_hinted(GET(sk, __sk_common.skc_num)))
		send_take(sk);
	return 0;
}

SEC("cgroup_skb/ingress")
int ttft_ingress(struct __sk_buff *skb)
{
	if (port_hinted(skb->local_port))
		on_segment(skb, false);
	return 1;
}

SEC("cgroup_skb/egress")
int ttft_egress(struct __sk_buff *skb)
{
	if (port_hinted(skb->local_port))
		on_segment(skb, true);
	return 1;
}

TRACEPOINT(inet_sock_set_state)
int BPF_PROG(ttft_state, struct sock *sk, int old, int state)
{
	return on_state(sk, old, state);
}

TRACEPOINT(tcp_rcv_space_adjust)
int BPF_PROG(ttft_take, struct sock *sk)
{
	return on_take(sk);
}
