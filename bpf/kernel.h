/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel types we read, with only the fields we read. CO-RE finds the
 * offsets in the running kernel, so no generated vmlinux.h is needed.
 */
#ifndef TTFT_KERNEL_H
#define TTFT_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>

#define __VMLINUX_H__ /* makes libbpf's headers use the types below */

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r10, r9, r8, dx, si, di, orig_ax;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	u64 regs[31];
};
struct pt_regs {
	u64 regs[31];
	u64 orig_x0;
	s32 syscallno;
};
#else
#error "unsupported architecture"
#endif

typedef struct {
	int counter;
} atomic_t;

struct kernel_siginfo {
	int si_code;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	__u32 i_rdev;
	struct super_block *i_sb;
	unsigned long i_ino;
	long long i_size;
	__u32 i_generation;
};

struct address_space {
	struct inode *host;
};

struct file {
	void *private_data;
	struct inode *f_inode;
	unsigned int f_flags;
	long long f_pos;
};

struct ovl_file { /* overlayfs keeps it in file.private_data */
	struct file *realfile;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
};

struct rb_node {
	struct rb_node *rb_right;
	struct rb_node *rb_left;
};

struct rb_root {
	struct rb_node *rb_node;
};

typedef struct {
	s64 counter;
} atomic64_t;

struct rw_semaphore {
	atomic64_t count;
};

struct seqcount {
	unsigned int sequence;
};
typedef struct seqcount seqcount_t;

struct mm_struct {
	int map_count;
	unsigned long total_vm;
	seqcount_t mm_lock_seq;
	struct rb_root mm_rb;
	struct rw_semaphore mmap_lock;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_pgoff;
	struct file *vm_file;
	struct rb_node vm_rb;
};

struct thread_info {
	u32 status;
};

struct task_struct {
	struct thread_info thread_info;
	struct mm_struct *mm;
	int exit_code;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct files_struct *files;
	struct signal_struct *signal;
	char comm[16];
	unsigned int in_user_fault : 1;
	struct bpf_local_storage *bpf_storage; /* NULL: no map has anything of it */
};

struct linux_binprm {
	const char *filename;
};

typedef struct {
	unsigned long f;
} memdesc_flags_t;

struct folio {
	memdesc_flags_t flags;
	struct address_space *mapping;
	unsigned long _flags_1;
};

struct page {
	struct address_space *mapping;
};

enum pageflags {
	PG_head = 6,
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_common __sk_common;
	u16 sk_protocol;
	struct sock_cgroup_data sk_cgrp_data;
};

struct inet_sock {
	struct sock sk;
	u16 inet_sport;
};

#pragma clang attribute pop

/* Without CO-RE: programs only pass it on. */
struct tcp_sock;

#if defined(__TARGET_ARCH_x86)
#define TTFT_PERF_REGS 21
#else
#define TTFT_PERF_REGS 34
#endif

/* The context of perf_event programs (uapi linux/bpf_perf_event.h): not relocated. */
struct bpf_perf_event_data {
	u64 regs[TTFT_PERF_REGS];
	u64 sample_period;
	u64 addr;
};

#define S_IFMT 0170000
#define S_IFREG 0100000

#if defined(__TARGET_ARCH_arm64)
#define O_DIRECT 0200000
#else
#define O_DIRECT 040000
#endif

#define ENOENT 2
#define E2BIG 7
#define EEXIST 17

#define OVERLAYFS_SUPER_MAGIC 0x794c7630

#define MAP_SHARED 0x01
#define MAP_ANONYMOUS 0x20
#define MAP_POPULATE 0x8000

#endif
