// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* All programs in one object: they share maps. One file per concern. */
#include "lifecycle.bpf.c"
#include "files.bpf.c"
#include "faults.bpf.c"
#include "cache.bpf.c"
#if __has_include("sockets.bpf.c")
#include "sockets.bpf.c"
#endif
#include "layout.bpf.c"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
