/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The one layout shared by the kernel side and user space.
 *
 * Every record starts with struct ttft_header. Times are CLOCK_MONOTONIC in
 * nanoseconds, sizes are bytes. tests/bpf/test_layout.py compares these structs,
 * as BTF in the built object, with tracer/kernel/wire.py. Only fixed-width
 * integers, no implicit padding.
 */
#ifndef TTFT_RECORDS_H
#define TTFT_RECORDS_H

#define TTFT_COMM_LEN 16
#define TTFT_NAME_LEN 256
#define TTFT_MAGIC_LEN 16

enum ttft_kind {
	TTFT_FORK = 1,
	TTFT_EXEC = 2,
	TTFT_EXIT = 3,
	TTFT_SIGNAL = 4,
	TTFT_FILE = 5,	 /* first open of a large regular file */
	TTFT_OPEN = 6,	 /* every open of one */
	TTFT_MAGIC = 7,	 /* first bytes of one, as the process itself saw them */
	TTFT_SPAN = 8,	 /* a run of like file events of one thread */
	TTFT_INSERT = 9, /* a run of page cache insertions of one file */
	TTFT_LISTEN = 10,
	TTFT_CONNECT = 11, /* a watched process connected to someone */
	TTFT_TAKE = 12,	   /* the server took bytes from a watched socket */
	TTFT_PACKET = 13,
	TTFT_LINKED = 14, /* the dynamic loader mapped libraries */
	TTFT_CALL = 15,	  /* a run of like calls into a library of one thread */
	TTFT_CACHED = 16, /* a file of a compile cache was opened */
	TTFT_DEVICE = 17, /* a run of like driver calls of one thread on one device */
	TTFT_KIND_COUNT = 18,
};

enum ttft_op {
	TTFT_OP_READ = 1,
	TTFT_OP_READ_DIRECT = 2, /* O_DIRECT: bypasses the page cache */
	TTFT_OP_MMAP = 3,
	TTFT_OP_MADVISE = 4,
	TTFT_OP_MUNMAP = 5,
	TTFT_OP_FAULT_MINOR = 6,
	TTFT_OP_FAULT_MAJOR = 7,
	TTFT_OP_COUNT = 8,
};

enum ttft_device_what { /* class of a driver call, as tracer/devices/devicecalls.toml has it */
			TTFT_DEVICE_OTHER = 0, /* an ioctl that no table knows */
			TTFT_DEVICE_OPEN = 1,
			TTFT_DEVICE_CONTEXT = 2,
			TTFT_DEVICE_ALLOCATE = 3,
			TTFT_DEVICE_MAP = 4,
			TTFT_DEVICE_PIN = 5,
			TTFT_DEVICE_QUEUE = 6,
			TTFT_DEVICE_TRANSFER = 7,
			TTFT_DEVICE_SUBMIT = 8,
			TTFT_DEVICE_SYNC = 9,
			TTFT_DEVICE_FREE = 10,
			TTFT_DEVICE_SHARE = 11,
			TTFT_DEVICE_QUERY = 12,
			TTFT_DEVICE_WHAT_COUNT = 13,
};

/* header.flags of a span; MADVISE keeps the advice in bits 8..15 */
#define TTFT_SPAN_POPULATE 1u	 /* mmap with MAP_POPULATE */
#define TTFT_SPAN_SHARED 2u	 /* mmap with MAP_SHARED */
#define TTFT_SPAN_PROVISIONAL 4u /* still growing; a later one with the same start replaces it */
/* header.flags of a packet */
#define TTFT_PACKET_EGRESS 1u /* server to client */
#define TTFT_PACKET_CUT 2u    /* captured < payload_len */
/* header.flags of a listen */
#define TTFT_LISTEN_CLOSED 1u
#define TTFT_LISTEN_UNSEEN 2u /* a connection, of a cgroup that user space did not name */

/* header.flags of a device record */
#define TTFT_DEVICE_SLOW 1u    /* a single call that took long: end - start is its time */
#define TTFT_DEVICE_FIRST 2u   /* its process opened this device for the first time */
#define TTFT_DEVICE_UNKNOWN 4u /* a device that user space has not told of: it may look again */

struct ttft_header {
	__u64 ts_ns;
	__u32 tgid;
	__u32 tid;
	__u16 kind;
	__u16 reserved;
	__u32 flags;
};

struct ttft_fork { /* header: the parent */
	struct ttft_header h;
	__u32 child_tgid;
	__u32 reserved;
	char comm[TTFT_COMM_LEN];
};

struct ttft_exec {
	struct ttft_header h;
	char comm[TTFT_COMM_LEN];
	char filename[TTFT_NAME_LEN];
};

struct ttft_exit { /* the last thread of a process */
	struct ttft_header h;
	__u32 code; /* as task_struct.exit_code: low 7 bits signal, 0x80 core dumped, bits 8..15
		       status */
	__u32 reserved;
};

struct ttft_signal { /* header: the sender */
	struct ttft_header h;
	__u32 target_tgid;
	__s32 signal;
	__s32 code; /* siginfo si_code: SI_KERNEL 0x80 when the kernel sent it */
	__u32 reserved;
};

struct ttft_file_id {
	__u64 ino;
	__u32 dev;   /* kernel dev_t: major << 20 | minor */
	__u32 token; /* which open(): same for all events through one struct file, not a pointer */
};

struct ttft_file { /* header: who opened it first */
	struct ttft_header h;
	struct ttft_file_id file;
	__u64 size;
	__s32 fd;
	__u32 reserved;
	char name[TTFT_NAME_LEN]; /* as given to open(), maybe relative */
};

struct ttft_open { /* header.ts_ns: return of open() */
	struct ttft_header h;
	struct ttft_file_id file;
	__u64 size;
	__u32 open_flags; /* O_* */
	__u32 reserved;
};

struct ttft_magic {
	struct ttft_header h;
	struct ttft_file_id file;
	__u8 bytes[TTFT_MAGIC_LEN];
};

struct ttft_span { /* header.ts_ns: entry of the first event */
	struct ttft_header h;
	struct ttft_file_id file;
	__u64 end_ns;  /* return of the last event */
	__u64 busy_ns; /* time inside the events */
	__u64 bytes;   /* returned by reads; length of mappings; faults: 4096 each */
	__u32 count;
	__u32 op; /* enum ttft_op */
};

struct ttft_insert { /* header: the process in whose context the last page came in */
	struct ttft_header h;
	struct ttft_file_id file; /* token 0 */
	__u64 end_ns;
	__u64 pages; /* of 4096 bytes */
};

struct ttft_conn { /* seen from the server; IPv4 in the first four bytes */
	__u8 server_addr[16];
	__u8 client_addr[16];
	__u32 netns;	   /* inode number of the network namespace; 0 unknown */
	__u16 server_port; /* host order */
	__u16 client_port;
	__u32 family; /* 4 or 6 */
};

struct ttft_listen {
	struct ttft_header h;
	struct ttft_conn conn; /* client part zero */
	__u32 reserved;
	__u64 cgroup; /* of the socket: inode of its folder; 0 unknown */
};

struct ttft_connect { /* conn: the other end is the server */
	struct ttft_header h;
	struct ttft_conn conn;
	__u32 reserved;
};

struct ttft_take {
	struct ttft_header h;
	struct ttft_conn conn;
	__u32 reserved;
};

struct ttft_packet {	      /* followed by `captured` bytes of TCP payload */
	struct ttft_header h; /* tgid, tid 0: softirq context says nothing about them */
	struct ttft_conn conn;
	__u32 seq;
	__u32 ack;
	__u32 payload_len;
	__u32 captured;
	__u32 tcp_flags; /* FIN 1, SYN 2, RST 4, PSH 8, ACK 16 */
};

struct ttft_linked {
	struct ttft_header h;
};

struct ttft_call { /* header.ts_ns: first entry */
	struct ttft_header h;
	__u64 end_ns;	 /* last entry */
	__u64 follow_ns; /* from each entry to the thread's next entry into any function */
	__u64 last_ns;	 /* of that, what followed the last one; 0: nothing yet */
	__u64 amount;	 /* bytes or tokens, by what the catalogue says of the function */
	__u32 count;
	__u32 call; /* row of the catalogue */
};

struct ttft_cached { /* at the entry of open(): it may have found nothing */
	struct ttft_header h;
	__u64 stem;	  /* hash of the path without endings */
	__u32 folder;	  /* as user space numbered it */
	__u32 open_flags; /* O_* */
};

struct ttft_device { /* header.ts_ns: entry of the first call */
	struct ttft_header h;
	__u64 end_ns;  /* return of the last call */
	__u64 busy_ns; /* time inside the calls */
	__u64 bytes;   /* of those that succeeded, where their arguments tell */
	__u32 rdev;    /* kernel dev_t of the device: major << 20 | minor */
	__u32 driver;  /* as user space numbered it; 0: not known */
	__u32 count;
	__u32 failed; /* of these, how many returned an error */
	__u32 what;   /* enum ttft_device_what */
	__u32 number; /* of the last ioctl; 0: none */
};

#endif
