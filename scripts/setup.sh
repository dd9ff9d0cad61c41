#!/bin/sh
# Makes this checkout ready: Debian packages through apt, everything else into .venv and build/.
# Quick when all is there. Uses the machine's own apt and pip configuration.
# Where there is no apt-get nothing is installed: what is needed has to be there, however it came.
#
#   scripts/setup.sh test     what the build and the tests without the real server need
#   scripts/setup.sh demo     and the real server with two models
#   scripts/setup.sh e2e      and a software Vulkan device, for the tests with the real server
#   scripts/setup.sh bench    and the peers that the benchmark compares with
#   scripts/setup.sh collectors  and a Prometheus, a Perfetto, and what builds an OpenTelemetry Collector
#   scripts/setup.sh vm       what the tests without the real server and those on other kernels need
#   scripts/setup.sh service  and to install it in guests with systemd
#   scripts/setup.sh arm64    and on an emulated arm64 machine
#   scripts/setup.sh all      what all tests need
set -eu
cd "$(dirname "$0")/.."

what=${1:-test}
extras=test
packages="clang llvm libbpf-dev libbpf1 linux-libc-dev"
vm_packages="qemu-system-x86 mmdebstrap kmod e2fsprogs gcc make"
case $what in
test) ;;
demo) extras=test,demo ;;
e2e) extras=test,demo packages="$packages mesa-vulkan-drivers python3-bpfcc" ;;
bench) extras=test,demo packages="$packages strace bpftrace mesa-vulkan-drivers" ;;
vm) packages="$packages $vm_packages" ;;
collectors) extras=test,collectors packages="$packages prometheus mmdebstrap chromium" ;;
service) packages="$packages $vm_packages qemu-utils" ;;
arm64) packages="$packages $vm_packages qemu-system-arm" ;;
all) extras=test,demo packages="$packages $vm_packages mesa-vulkan-drivers python3-bpfcc" ;;
*) echo "usage: scripts/setup.sh test|demo|e2e|bench|collectors|vm|service|arm64|all" >&2 && exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2 && exit 1; }

# Prints the name of a tool, which may have LLVM's version in it; build_bpf.py knows the same.
tool() {
	for name in "$1" $(seq -f "$1-%g" 22 -1 12); do
		command -v "$name" && return 0
	done
	return 1
}

# Whether clang finds the headers that bpf/ includes.
has_headers() {
	clang=$(tool clang) || return 1
	set --
	for folder in /usr/include/*-linux-gnu*/asm; do
		[ ! -d "$folder" ] || set -- "$@" -idirafter "${folder%/asm}"
	done
	printf '#include <%s>\n' linux/types.h linux/bpf.h bpf/bpf_helpers.h |
		"$clang" -target bpf "$@" -fsyntax-only -x c - 2>/dev/null
}

has_libbpf() { "$(find_python)" -c 'import ctypes; ctypes.CDLL("libbpf.so.1")' 2>/dev/null; }

# Whether what a Debian package is wanted for is here on a system without Debian's packages.
has() {
	case $1 in
	clang) tool clang ;;
	llvm) ;; # llvm-strip makes the objects smaller, no more
	linux-libc-dev | libbpf-dev) has_headers ;;
	libbpf1) has_libbpf ;;
	python3-venv) find_python venv ;;
	python3-bpfcc) python3 -c 'import bcc' 2>/dev/null ;;
	mesa-vulkan-drivers) ls /usr/share/vulkan/icd.d/lvp_icd* /etc/vulkan/icd.d/lvp_icd* 2>/dev/null | grep . ;;
	kmod) command -v modprobe ;;
	e2fsprogs) command -v mkfs.ext4 ;;
	qemu-system-x86) command -v qemu-system-x86_64 ;;
	qemu-system-arm) command -v qemu-system-aarch64 ;;
	qemu-utils) command -v qemu-img ;;
	*) command -v "$1" ;;
	esac >/dev/null
}

missing_packages() {
	if ! command -v apt-get >/dev/null; then
		for package in "$@"; do
			has "$package" || printf '%s ' "$package"
		done
		return 0
	fi
	for package in "$@"; do
		status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
		[ "$status" = "install ok installed" ] || printf '%s ' "$package"
	done
}

# Another apt may run (unattended upgrades on a fresh machine): wait for its locks.
apt() {
	attempt=0
	until DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 "$@" >build/apt.log 2>&1; do
		attempt=$((attempt + 1))
		if ! grep -q 'Could not get lock' build/apt.log || [ $attempt -gt 120 ]; then
			return 1
		fi
		[ $attempt -gt 1 ] || say "waiting for another apt to finish"
		sleep 5
	done
}

install_packages() {
	wanted=$(missing_packages "$@")
	[ -n "$wanted" ] || return 0
	command -v apt-get >/dev/null ||
		fail "missing: $wanted" "these are Debian's names: install what holds them here (clang, bpf/bpf_helpers.h, libbpf.so.1 and so on)"
	[ "$(id -u)" = 0 ] || return 1
	say "installing Debian packages: $wanted"
	# shellcheck disable=SC2086 # a list of names
	apt install -y --no-install-recommends $wanted && return 0
	say "refreshing the package lists"
	apt update || { cat build/apt.log >&2 && fail "apt-get update failed" "see the lines above"; }
	# shellcheck disable=SC2086
	apt install -y --no-install-recommends $wanted && return 0
	cat build/apt.log >&2
	fail "apt-get install failed" "see the lines above"
}

# Prints a Python of 3.11 or later; with `venv`: only one that can make environments.
find_python() {
	for python in ${PYTHON:-} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
		"$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || continue
		[ "${1:-}" != venv ] || "$python" -c "import ensurepip, venv" 2>/dev/null || continue
		command -v "$python" && return 0
	done
	return 1
}

make_venv() {
	find_python >/dev/null || fail "no Python 3.11 or later" "set PYTHON to one"
	if ! find_python venv >/dev/null; then
		install_packages python3-venv ||
			fail "this Python cannot make environments" "as root: apt-get install python3-venv"
	fi
	python=$(find_python venv) || fail "no Python with venv" "apt-get install python3-venv"
	say "making .venv with $python"
	"$python" -m venv --clear .venv
}

mkdir -p build
bpf=yes
# shellcheck disable=SC2086
if ! install_packages $packages; then
	say "not root, so these Debian packages cannot be installed: $(missing_packages $packages)"
	say "hint: as root: apt-get install $(missing_packages $packages)"
	tool clang >/dev/null || bpf=no
	[ $bpf = yes ] || say "without clang no BPF object is built: recordings can be replayed, no more"
fi

.venv/bin/python -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || make_venv
stamp=$(cat pyproject.toml build_bpf.py scripts/setup.sh | cksum | tr ' ' -)-$extras-$bpf
if [ "$(cat .venv/setup.stamp 2>/dev/null)" != "$stamp" ]; then
	say "installing Python packages into .venv (a few hundred MB with the demo's)"
	.venv/bin/python -m pip install -qq --disable-pip-version-check -e ".[$extras]" ||
		fail "pip could not install what pyproject.toml names" "see the lines above"
	echo "$stamp" >.venv/setup.stamp
fi
if [ "${extras#test,demo}" != "$extras" ]; then
	.venv/bin/python -m tests.workloads.models build/models
fi
