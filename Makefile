# Each target sets up all it needs from a bare checkout: a virtual environment, then the tested versions.
# `make demo` and `bench` use .venv, which holds what a user installs; `make test` and `check` use .venv-dev, which adds
# the developers' tools (and torchvision, as a second image backend to compare with).
#
#   make demo PYTHON=python3.12 ARGS="--steps 100"      make test ARGS="-k packing"

VENV ?= .venv
DEV_VENV ?= .venv-dev
BENCH_VENV ?= .venv-bench
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$name && break; done)
ARGS ?=

BIN := $(VENV)/bin
DEV_BIN := $(DEV_VENV)/bin
BENCH_BIN := $(BENCH_VENV)/bin

.PHONY: help demo test check bench bench-loader bench-throughput bench-convert bench-plan bench-video format clean
help:
	@echo "make demo     train a tiny vision-language model on real images through packloom"
	@echo "make test     run the tests"
	@echo "make check    lint, format, types, style budgets"
	@echo "make bench    run the benchmarks"
	@echo "make bench-loader   compare the loader with webdataset and megatron-energon"
	@echo "make bench-throughput  compare tokens/s with HF collates, megatron-energon and the floor (not part of make bench)"
	@echo "make bench-convert  compare the conversion of a Lance dataset with copying the same bytes"
	@echo "make bench-plan     plan packs for 10 million lengths: time, memory, fill, balance"
	@echo "make bench-video    compare tokens/s of video rows with the HF video processor and with decoding alone"
	@echo "make format   rewrite the code in the house format"
	@echo "make clean    remove the virtual environments and caches"

demo: $(VENV)/.packloom-installed
	$(BIN)/packloom demo $(ARGS)

test: $(DEV_VENV)/.packloom-installed
	$(DEV_BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile $(ARGS)

check: $(DEV_VENV)/.packloom-installed
	$(DEV_BIN)/ruff check .
	$(DEV_BIN)/ruff format --check .
	$(DEV_BIN)/mypy
	$(DEV_BIN)/python tools/check_style.py

bench: $(VENV)/.packloom-installed
	$(BIN)/python benchmarks/packing.py $(ARGS)
	$(BIN)/python benchmarks/demo_lengths.py $(VENV)/demo-lengths
	$(BIN)/python benchmarks/packing.py --lengths $(VENV)/demo-lengths --pack-length 512
	$(BIN)/python benchmarks/masks.py

# megatron-energon is no dependency of packloom, so it has an environment of its own. It asks for older versions of
# packages that do not matter here, so only what is measured keeps its pin.
bench-loader: $(BENCH_VENV)/.energon-tried
	TQDM_DISABLE=1 $(BENCH_BIN)/python benchmarks/loader_speed.py $(ARGS)
	TQDM_DISABLE=1 $(BENCH_BIN)/python benchmarks/restore_peers.py
	$(BENCH_BIN)/python benchmarks/resume.py
	$(BENCH_BIN)/python benchmarks/resume_far.py
	$(BENCH_BIN)/python benchmarks/loader_memory.py
	$(BENCH_BIN)/python benchmarks/index_speed.py

# Contenders that cannot be installed are listed as not run.
bench-throughput: $(BENCH_VENV)/.energon-tried
	@$(BENCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c $(BENCH_VENV)/pins.txt -e . torchvision || \
		echo "torchvision cannot be installed here" >&2
	$(BENCH_BIN)/python benchmarks/throughput.py --write docs $(ARGS)
	$(BENCH_BIN)/python benchmarks/batch_costs.py

bench-convert: $(BENCH_VENV)/.packloom-installed
	@$(BENCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[lance]"
	$(BENCH_BIN)/python benchmarks/convert.py $(ARGS)

bench-plan: $(BENCH_VENV)/.packloom-installed
	@$(BENCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[plan]"
	$(BENCH_BIN)/python benchmarks/plan.py $(ARGS)

# Without torchvision there is no HF video processor: it is then listed as not run.
bench-video: $(BENCH_VENV)/.packloom-installed
	@$(BENCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[video]" torchvision || \
		$(BENCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[video]"
	$(BENCH_BIN)/python benchmarks/video.py $(ARGS)

format: $(DEV_VENV)/.packloom-installed
	$(DEV_BIN)/ruff format .
	$(DEV_BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(DEV_VENV) $(BENCH_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-out

# The stamp is written last, so an interrupted installation starts again.
$(VENV)/.packloom-installed: pyproject.toml constraints.txt
	$(call install,$(VENV),demo)

$(DEV_VENV)/.packloom-installed: pyproject.toml constraints.txt
	$(call install,$(DEV_VENV),dev)

$(BENCH_VENV)/.packloom-installed: pyproject.toml constraints.txt
	$(call install,$(BENCH_VENV),demo)

$(BENCH_VENV)/.energon-tried: $(BENCH_VENV)/.packloom-installed
	@grep -E '^(numpy|pillow|tokenizers|torch|torchvision|transformers|webdataset)==' constraints.txt > $(BENCH_VENV)/pins.txt
	@$(BENCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c $(BENCH_VENV)/pins.txt -e ".[energon]" || \
		echo "megatron-energon cannot be installed here: its figures are left out" >&2
	@touch $@

define install
	@test -n "$(PYTHON)" || { echo "packloom needs Python 3.10 or newer: make ... PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is not Python 3.10 or newer: make ... PYTHON=/path/to/python" >&2; exit 1; }
	@echo "setting up $(1) (once; torch is the large part) ..."
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(2)]"
	@touch $@
endef
