.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-vulkan test test-vm test-vm-renew test-vm-arm64 test-all test-service test-collectors lint bench soak wheel deb bundle install uninstall clean setup setup-demo setup-e2e setup-bench setup-collectors setup-vm setup-service setup-arm64 setup-all bpf

PYTHON := .venv/bin/python
PREFIX ?= /opt/ttft
DEMO := --out build/demo --models build/models

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: setup-demo bpf ## set up, drive a real server through nine scenarios, explain each first token
	@$(PYTHON) -m demo $(DEMO)

demo-vulkan: setup-e2e bpf ## the same on a software Vulkan device: uploads, shader compilation
	@$(PYTHON) -m demo --vulkan $(DEMO)

test: setup-e2e bpf ## set up, then linters and all tests this machine can run
	@$(PYTHON) -m pytest $(ARGS)

test-vm: setup-vm bpf ## set up, then boot each kernel of tests/vm/kernels.toml, emulated
	@TTFT_VM_KERNELS="$(KERNELS)" $(PYTHON) -m pytest -m vm tests/vm $(ARGS)

test-vm-renew: setup-vm bpf ## the same, and take what comes as what is expected
	@TTFT_VM_RENEW=1 TTFT_VM_KERNELS="$(KERNELS)" $(PYTHON) -m pytest -m vm tests/vm $(ARGS)

test-vm-arm64: setup-arm64 bpf ## the same on an emulated arm64 machine; slower, not part of CI
	@TTFT_VM_KERNELS=6.1-arm64 $(PYTHON) -m pytest -m vm tests/vm $(ARGS)

test-all: setup-all bpf ## make test, then make test-vm, as one run
	@$(PYTHON) -m pytest -m "vm or not vm" $(ARGS)

test-service: setup-service bpf ## set up, then install it in each way on a real systemd, emulated
	@$(PYTHON) -m pytest -m service tests/service $(ARGS)

test-collectors: setup-collectors bpf ## set up, then with a real Prometheus, OpenTelemetry Collector and Perfetto
	@$(PYTHON) -m pytest -m collectors tests/collectors $(ARGS)

lint: setup bpf ## ruff, mypy --strict, clang-format
	@$(PYTHON) -m pytest -q tests/lint

bench: setup-bench bpf ## set up, then measure each budget against an untraced server
	@$(PYTHON) -m bench

soak: setup bpf ## a million requests through one daemon, half an hour or so: nothing may grow
	@$(PYTHON) -m bench.soak $(ARGS)

deb: setup bpf ## build dist/*.deb, for amd64 and arm64
	@$(PYTHON) -m pack deb

bundle: setup bpf ## build dist/*.tar.gz: self-contained, for systems without Python
	@$(PYTHON) -m pack bundle

wheel: setup bpf ## build dist/*.whl, with the BPF objects and a libbpf in it
	@$(PYTHON) -m pack wheel

install: wheel ## install from this tree into $(PREFIX), as root, and start the service
	@systemctl stop ttftd.service 2>/dev/null || true
	@$(PYTHON) -m venv $(PREFIX)
	@$(PREFIX)/bin/python -m pip -q --disable-pip-version-check install --force-reinstall dist/ttft-*.whl
	@ln -sf $(PREFIX)/bin/ttft $(PREFIX)/bin/ttftd /usr/local/bin/
	@$(PREFIX)/bin/ttft manual /usr/local
	@$(PREFIX)/bin/ttft service install

uninstall: ## undo `make install`; history and configuration stay
	@$(PREFIX)/bin/ttft service uninstall
	@$(PREFIX)/bin/ttft manual --remove /usr/local >/dev/null
	rm -rf $(PREFIX) /usr/local/bin/ttft /usr/local/bin/ttftd

clean: ## remove all that was made here, .venv and models too
	rm -rf .venv build dist tracer/kernel/libs tracer/kernel/objects *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

setup:
	@scripts/setup.sh test

setup-e2e:
	@scripts/setup.sh e2e

setup-demo:
	@scripts/setup.sh demo

setup-bench:
	@scripts/setup.sh bench

setup-collectors:
	@scripts/setup.sh collectors

setup-vm:
	@scripts/setup.sh vm

setup-service:
	@scripts/setup.sh service

setup-arm64:
	@scripts/setup.sh arm64

setup-all:
	@scripts/setup.sh all

bpf: build/bpf.stamp

build/bpf.stamp: $(wildcard bpf/*.c bpf/*.h) build_bpf.py
	@if $(PYTHON) -c 'import sys, build_bpf; sys.exit(build_bpf.find("clang") is None)'; then $(PYTHON) build_bpf.py >/dev/null && touch $@; fi
