// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* All programs in one object: they share maps. One file per concern. */
#include "lifecycle.bpf.c"
#include "files.bpf.c"
#include "faults.bpf.c"
#ifndef TTFT_PLAIN
#include "files_fentry.bpf.c"
#include "faults_fentry.bpf.c"
#endif
#ifndef TTFT_PLAIN
#include "devices_fentry.bpf.c"
#endif
#include "cache.bpf.c"
#include "stacks.bpf.c"
#if __has_include("sockets.bpf.c")
#include "sockets.bpf.c"
#endif
#ifndef TTFT_PLAIN /* cookies of attachments came with 7adfc6c9b315 (5.15) */
#include "libs.bpf.c"
#include "compiled.bpf.c"
#endif
#include "layout.bpf.c"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
