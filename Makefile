# What people type; Meson does the work.
BUILD  ?= build
PREFIX ?= /usr/local
DESTDIR ?=
DEMO   := tests/data/torch-ddp-gloo-gpt-n2-default
PYTHON ?= python3
EXAMPLES := example-tensorflow example-tensorflow-ps example-tensorflow-collectives example-mxnet example-mxnet-gluon example-horovod-tensorflow \
	example-horovod-mxnet example-horovod-pytorch
export PYTHON

.DEFAULT_GOAL := build
.PHONY: build deps demo demo-live $(EXAMPLES) test test-long bench bench-live bench-frameworks bench-networks bench-plans accuracy accuracy-live accuracy-blind accuracy-memory accuracy-computation accuracy-parallel faults lint install wheel deb clean help

build: ## build the command (build/dpro) and the library
	@tools/install.sh --check build
	@tools/build.sh $(BUILD)

deps: ## install what is missing to build and test
	@tools/install.sh build test

demo: ## install what is missing, build, replay a bundled real trace, search how it could be faster
	@tools/install.sh build
	@tools/build.sh $(BUILD)
	@./$(BUILD)/dpro replay $(DEMO) -o out/demo
	@echo
	@echo 'How its gradients would travel best:'
	@echo
	@./$(BUILD)/dpro optimize -q $(DEMO) -o out/demo/plan
	@echo
	@echo 'Look at:'
	@echo '  out/demo/report.html          open it in a browser'
	@echo '  out/demo/timeline.json.gz     open it at https://ui.perfetto.dev'
	@echo '  out/demo/replay.json          the same facts for programs'
	@echo '  out/demo/plan/optimize.html   the search for better buckets'
	@echo "'make demo-live' records a training of its own first, with PyTorch."

demo-live: ## install what is missing (PyTorch too), build, record a small real training, replay it
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/demo_live.py --build $(BUILD)

# Each trains one of examples/ on two workers, in an environment of its own, called as the framework in the target's name.
$(EXAMPLES):
	@tools/install.sh build
	@tools/venv.sh $(if $(findstring pytorch,$@),horovod-pytorch,$(word 2,$(subst -, ,$@)))
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/demo_live.py $(patsubst example-%,%,$@) --build $(BUILD)

example-tensorflow: ## train a small network on TensorFlow workers (ring) under dpro, replay it; installs what it needs
example-tensorflow-ps: ## the same with a parameter server and TensorFlow 1's sessions
example-tensorflow-collectives: ## the same with TensorFlow 1's sessions and collectives
example-mxnet: ## the same with MXNet's key-value store, a Module
example-mxnet-gluon: ## the same with Gluon and two servers
example-horovod-tensorflow: ## the same with Horovod and TensorFlow; compiles Horovod first, which takes 10 minutes
example-horovod-mxnet: ## the same with Horovod and MXNet
example-horovod-pytorch: ## the same with Horovod and PyTorch; compiles a Horovod for it, which takes 10 minutes

test: ## install what is missing (PyTorch too), build, run all tests; the last line counts them
	@tools/install.sh build test
	@tools/venv.sh
	@tools/venv.sh notebook
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/run_tests.py --build $(BUILD)

test-long: ## tests under sanitizers and valgrind, every framework's jobs, another Python, a clean Debian, fuzz targets (PARTS: some of it)
	@tools/install.sh build test memory fuzz
	@tools/test_long.sh $(PARTS)

bench: ## speed against targets and named peers; takes 6 minutes, wants a quiet machine
	@tools/install.sh build test bench
	@tools/build.sh $(BUILD)
	@tools/venv.sh bench
	@$(PYTHON) tools/bench.py --build $(BUILD)

bench-live: ## what recording costs a training job, in one process; takes minutes, wants a quiet machine
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/bench_live.py --build $(BUILD)

bench-frameworks: ## what recording costs jobs of TensorFlow, MXNet and Horovod; takes minutes, wants a quiet machine
	@tools/install.sh build
	@for framework in tensorflow mxnet horovod; do tools/venv.sh $$framework; done
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/accuracy_live.py --cost --build $(BUILD)

bench-networks: ## the paper's networks in small, their plans and XLA's choices measured by turns; 5 minutes a job, wants a quiet machine and root
	@tools/install.sh build
	@for framework in torch tensorflow; do tools/venv.sh $$framework; done
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/bench_networks.py --build $(BUILD) --readme

bench-plans: ## what plans are worth on real jobs with a slow link; takes minutes, wants a quiet machine and root
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/bench_plans.py --build $(BUILD)

accuracy: ## replayed against measured, over all real traces; renews the tables of README.md and doc/accuracy.md
	@tools/install.sh --check build
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/accuracy.py --build $(BUILD) --readme

accuracy-live: ## predicted against steps without a profiler, on new recordings of the examples; takes minutes, wants a quiet machine
	@tools/install.sh build
	@for framework in tensorflow mxnet horovod horovod-pytorch; do tools/venv.sh $$framework; done
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/accuracy_live.py --build $(BUILD)

accuracy-blind: ## what-ifs of jobs drawn at random against the same jobs run that way; 4 minutes a job, wants a quiet machine and root
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/measure.py blind --build $(BUILD)

faults: ## what diagnose says of real jobs with a fault put in, against the same jobs without; 1 minute a fault, wants a quiet machine and root
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/faults.py --build $(BUILD) --live

accuracy-memory: ## peaks of memory and what-ifs of it against the same jobs run that way; 5 minutes a network, wants a quiet machine
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/measure.py memory --build $(BUILD)

accuracy-computation: ## what-ifs of modules compiled, in 16 bits, of other batches, against the same jobs; 15 minutes a network, wants a quiet machine
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/measure.py computation --build $(BUILD)

accuracy-parallel: ## replays and what-ifs of sharded, tensor, pipeline and expert parallel jobs, against the same jobs; 3 minutes a job, wants a quiet machine and root
	@tools/install.sh build
	@tools/venv.sh
	@tools/build.sh $(BUILD)
	@$(PYTHON) tools/measure.py parallel --build $(BUILD)

lint: ## formatting, headers, includes and calls, names, words, man pages, Python files
	@tools/lint.sh $(BUILD)

install: ## install command, library, headers, man pages: make install PREFIX=/usr/local [DESTDIR=]
	@tools/install.sh --check build
	@tools/build.sh $(BUILD) -Dprefix=$(abspath $(PREFIX))
	@meson install -C $(BUILD) --no-rebuild --quiet $(if $(DESTDIR),--destdir $(abspath $(DESTDIR)))

wheel: ## out/wheel: a wheel that needs nothing on the machine, built in a clean Debian 11 and tried in 11, 12 and 13; wants root and debootstrap
	@tools/wheel.sh

deb: ## out/deb: a package for this Debian, tried in a clean one; wants root and debootstrap to try it
	@tools/install.sh --check build
	@tools/deb.sh

clean: ## remove everything that was built
	rm -rf $(BUILD) build-asan build-tsan build-fuzz out .venv .venv.missing .venv-*

help: ## this list
	@sed -n 's/^\([a-z-]*\): ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 28
