// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A struct reached only through a ring pointer is missing from BTF: these keep the
 * records in, for the layout test.
 */
#include "common.bpf.h"
#include "maps.h"

struct ttft_fork *unused_fork __attribute__((unused));
struct ttft_exec *unused_exec __attribute__((unused));
struct ttft_exit *unused_exit __attribute__((unused));
struct ttft_signal *unused_signal __attribute__((unused));
struct ttft_file *unused_file __attribute__((unused));
struct ttft_open *unused_open __attribute__((unused));
struct ttft_magic *unused_magic __attribute__((unused));
struct ttft_span *unused_span __attribute__((unused));
struct ttft_insert *unused_insert __attribute__((unused));
struct ttft_listen *unused_listen __attribute__((unused));
struct ttft_connect *unused_connect __attribute__((unused));
struct ttft_take *unused_take __attribute__((unused));
struct ttft_packet *unused_packet __attribute__((unused));
struct ttft_linked *unused_linked __attribute__((unused));
struct ttft_call *unused_call __attribute__((unused));
struct ttft_call_spec *unused_call_spec __attribute__((unused));
struct ttft_run_key *unused_run_key __attribute__((unused));
struct ttft_run_state *unused_run_state __attribute__((unused));
struct ttft_cached *unused_cached __attribute__((unused));
struct ttft_folder_key *unused_folder_key __attribute__((unused));
struct ttft_stack_key *unused_stack_key __attribute__((unused));
struct ttft_device *unused_device __attribute__((unused));
struct ttft_device_node *unused_device_node __attribute__((unused));
struct ttft_device_key *unused_device_key __attribute__((unused));
struct ttft_device_spec *unused_device_spec __attribute__((unused));
struct ttft_device_run_key *unused_device_run_key __attribute__((unused));
struct ttft_device_run *unused_device_run __attribute__((unused));
struct ttft_device_holder *unused_device_holder __attribute__((unused));
enum ttft_device_what unused_device_what __attribute__((unused));
enum ttft_device_size unused_device_size __attribute__((unused));
enum ttft_measure unused_measure __attribute__((unused));
enum ttft_kind unused_kind __attribute__((unused));
enum ttft_op unused_op __attribute__((unused));
enum ttft_loss unused_loss __attribute__((unused));
