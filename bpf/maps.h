/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Keys and values of the maps that user space reads; checked by the layout test
 * like records.h.
 */
#ifndef TTFT_MAPS_H
#define TTFT_MAPS_H

struct ttft_file_key {
	__u64 ino;
	__u32 dev;
	__u32 reserved;
};

struct ttft_file_state {
	__u64 size;
	__u64 inserted; /* pages that came into the page cache, exact */
	/* The open INSERT span: when it began << 1 | which of the two below is its; 0: none yet. */
	__u64 run;
	__u64 run_end0_ns;
	__u64 run_end1_ns;
	__u64 run_pages0;
	__u64 run_pages1;
	__u32 run_tgid;
	__u32 run_tid;
	__u32 generation; /* of the inode: another one is another file */
	__u32 opens;
	__u32 magic; /* first bytes: 0 not seen, 1 fewer than TTFT_MAGIC_LEN, 2 seen */
	__u32 elf;   /* a program or library, by its first bytes */
};

struct ttft_span_key {
	__u64 ino;
	__u32 dev;
	__u32 tid;
	__u32 op;
	__u32 reserved;
};

/* A copy with begin != end was taken during an update. */
struct ttft_span_state {
	__u32 begin;
	__u32 tgid;
	__u64 start_ns;
	__u64 end_ns;
	__u64 busy_ns;
	__u64 bytes;
	__u32 count;
	__u32 token;
	__u32 flags;
	__u32 end;
};

struct ttft_total_key {
	__u64 ino;
	__u32 dev;
	__u32 tgid;
	__u32 op;
	__u32 reserved;
};

struct ttft_total {
	__u64 count;
	__u64 bytes;
	__u64 busy_ns;
};

struct ttft_port_key {
	__u32 netns; /* 0: not known */
	__u16 port;
	__u16 reserved;
};

struct ttft_port {
	__u32 tgid;	 /* who listened first; 0: user space put it in */
	__u32 listeners; /* sockets; the port goes with the last. 0 counts as 1 */
};

/* Functions of user libraries: rows of `call_specs`. */
#define TTFT_CALLS 1024

enum ttft_measure {
	TTFT_MEASURE_NONE = 0,
	TTFT_MEASURE_ARG = 1,	  /* 64 bits */
	TTFT_MEASURE_U32 = 2,	  /* 32 bits */
	TTFT_MEASURE_PRODUCT = 3, /* of `arg` and `other` */
	TTFT_MEASURE_POINTED = 4, /* 64 bits at `offset` of what `arg` points to */
	TTFT_MEASURE_ARRAY = 5,	  /* the same of `other` structs of `stride` bytes, summed */
	TTFT_MEASURE_BATCH = 6,	  /* 32 bits at `offset` of a struct passed by value */
};

struct ttft_call_spec {
	__u64 gap_ns; /* a longer silence ends a run */
	__u32 measure;
	__u32 arg; /* counts from 1; 0: none */
	__u32 other;
	__u32 offset;
	__u32 stride;
	__u32 when_arg;	  /* only calls in which this argument */
	__u32 when_value; /* is this; when_arg 0: all */
	__u32 reserved;
};

struct ttft_run_key {
	__u32 tid;
	__u32 call;
};

/* A copy with begin != end was taken during an update. */
struct ttft_run_state {
	__u32 begin;
	__u32 tgid;
	__u64 start_ns;
	__u64 end_ns;
	__u64 follow_ns;
	__u64 last_ns;
	__u64 amount;
	__u64 each; /* amount of its first call */
	__u32 count;
	__u32 end;
};

/* A prefix of paths: so many bits of it count. */
#define TTFT_FOLDER_LEN 128

struct ttft_folder_key {
	__u32 bits;
	char path[TTFT_FOLDER_LEN];
};

/* Which devices have their calls seen: by kernel dev_t, or for all minors of a major. */
#define TTFT_ANY_MINOR 0xfffff

struct ttft_device_node {
	__u32 driver; /* numbered by user space from 1 */
	__u32 type;   /* of its ioctls; 0: not looked at */
	__u32 whole;  /* ioctls are told by all 32 bits, not by their number of 8 */
	__u32 reserved;
};

struct ttft_device_key {
	__u32 driver;
	__u32 number;
	__u32 sub;
	__u32 has_sub; /* 1: `sub` is what the argument holds at `sub_offset` */
};

/* The argument holds another call: { u32 number, u32 size, u64 argument } */
#define TTFT_SPEC_WRAPS 1u
#define TTFT_SPEC_LATE 2u /* the driver fills the size in: read at the return */

enum ttft_device_size {
	TTFT_SIZE_NONE = 0,
	TTFT_SIZE_U64 = 1,     /* 64 bits at `offset` of the argument */
	TTFT_SIZE_U32 = 2,     /* 32 bits there */
	TTFT_SIZE_POINTED = 3, /* 64 bits at `offset` of what the pointer at `through` points to */
};

struct ttft_device_spec {
	__u32 what;
	__u32 size; /* enum ttft_device_size */
	__u32 offset;
	__u32 through;
	__u32 plus;	/* added to it: the argument has the last byte, not the number of them */
	__u32 sub_mask; /* 0: the number says it all */
	__u32 sub_offset;
	__u32 flags; /* TTFT_SPEC_* */
};

struct ttft_device_run_key {
	__u32 tid;
	__u32 rdev;
	__u32 what;
	__u32 reserved;
};

/* A copy with begin != end was taken during an update. */
struct ttft_device_run {
	__u32 begin;
	__u32 tgid;
	__u64 start_ns;
	__u64 end_ns;
	__u64 busy_ns;
	__u64 bytes;
	__u32 driver;
	__u32 count;
	__u32 failed;
	__u32 number;
	__u32 reserved;
	__u32 end;
};

struct ttft_device_holder {
	__u32 tgid;
	__u32 rdev;
};

/* Samples of the same stack of a process in the same time: `slot` counts tenths of a second of
 * CLOCK_MONOTONIC, `frames` are addresses, the innermost first, 0 from the last one on.
 */
#define TTFT_FRAMES 8

struct ttft_stack_key {
	__u32 tgid;
	__u32 slot;
	__u64 frames[TTFT_FRAMES];
};

/* Slots of `port_hints`, which user space sets to 1 for the ports it adds. */
#define TTFT_PORT_HINTS 8192

#endif
