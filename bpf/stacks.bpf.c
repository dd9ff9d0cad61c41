// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Where the code of watched processes runs, told by a clock on each processor. User space opens
 * the clocks, lets them tick only while a request waits, and takes the counts out now and then.
 */
#include "compat.bpf.h"
#include "maps.h"

#define SLOT_NS 100000000ull

struct { /* how often a process was found there; allocated before, as the clock interrupts */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ttft_stack_key);
	__type(value, u64);
} stacks SEC(".maps");

struct { /* samples that found no room in it */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} stacks_left_out SEC(".maps");

INLINE void leave_out(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&stacks_left_out, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
}

INLINE int on_clock(void *ctx)
{
	struct ttft_stack_key key = {};
	u64 one = 1, *count;

	if (!current_watched())
		return 0;
	key.tgid = bpf_get_current_pid_tgid() >> 32;
	key.slot = bpf_ktime_get_ns() / SLOT_NS;
	if (bpf_get_stack(ctx, key.frames, sizeof(key.frames), BPF_F_USER_STACK) <= 0)
		return 0;
	count = bpf_map_lookup_elem(&stacks, &key);
	if (!count && bpf_map_update_elem(&stacks, &key, &one, BPF_NOEXIST) == 0)
		return 0;
	if (!count) /* another processor was faster, or there is no room */
		count = bpf_map_lookup_elem(&stacks, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		leave_out();
	return 0;
}

SEC("perf_event")
int ttft_stack(struct bpf_perf_event_data *ctx)
{
	return on_clock(ctx);
}
