# headrace: every target does its own set-up. The list: make help

# The first interpreter on the path that is new enough; override with make PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# twice the processors, as many tests wait; torch processes are memory-hungry: more than four at
# once helps nobody
TEST_JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 2 ] && echo 4 || echo $$((2 * n)))
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
RELEASE := build/release
# the oldest C library that wheels built on this system (Debian 12) run on
WHEEL_TAG ?= manylinux_2_36_$(shell uname -m)
NATIVE_SOURCES := $(shell find native -name '*.hpp' -o -name '*.cpp' 2>/dev/null)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --no-warn-script-location
# what a claim's benchmark needs beside headrace, if anything
RIVALS := $(patsubst requirements/%.txt,$(VENV)/.%,$(wildcard requirements/bench-$(CLAIM).txt))
CMAKE_CONFIGURE = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DHEADRACE_TESTS=ON
# processes of the native tests: these wait for deadlines most of the time
NATIVE_JOBS = $(shell echo $$((3 * $(JOBS))))
# gcc's ThreadSanitizer needs a predictable address space where the kernel randomizes many bits
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

export PIP_ROOT_USER_ACTION := ignore
# hundreds of Python processes start in the tests: each would compile all that it imports
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-slow check format stubs sanitize bench claim index-bench native \
	native-tests wheel clean
.DELETE_ON_ERROR:
# two of cmake's builds must not share a folder; each target is parallel inside
.NOTPARALLEL:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

demo: native ## measure, plan, and train on Gloo and on headrace (3 minutes)
	$(call say,running the demo)
	@$(BIN)/headrace demo

docs: native $(VENV)/.docs ## build the documentation as a site in build/docs/html; warnings are errors
	$(call say,building the site)
	@$(BIN)/python -m docs.site

test: native native-tests $(VENV)/.test ## the tests: native, then Python; of long ones a sample (12 minutes on two cores)
	@$(if $(PYTEST_ARGS),,rm -f build/test-minutes.txt)
	$(call run_tests,fast,-LE slow,$(if $(PYTEST_ARGS),,build/test-minutes.txt))

test-slow: native native-tests $(VENV)/.test $(VENV)/.test-slow $(VENV)/.docs ## the long tail: what make test leaves out or samples (an hour)
	$(call run_tests,slow,-L slow)

# $(call run_tests,tier,ctest's choice of labels,file for the minutes of all)
define run_tests
	@date +'{"began": %s}' > build/test-$(1).jsonl
	$(call say,native tests)
	@$(BIN)/ctest --test-dir $(RELEASE) --output-on-failure --no-tests=error -j $(NATIVE_JOBS) $(2)
	$(call say,Python tests on $(TEST_JOBS) processes)
	@$(BIN)/python -m pytest -p tests.minutes --minutes build/test-$(1).jsonl --tier $(1) \
		-n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)
	@$(BIN)/python -m tests.minutes $(1) build/test-$(1).jsonl $(3)
endef

check: native $(VENV)/.test $(VENV)/.check ## lint, format, types, native format, stub file
	$(call say,ruff)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	$(call say,basedpyright)
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(call say,clang-format)
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES)
	$(call say,stub file of headrace._native)
	@$(BIN)/python -m nanobind.stubgen -q -m headrace._native -o build/_native.pyi
	@diff -u src/headrace/_native.pyi build/_native.pyi \
		|| { echo "src/headrace/_native.pyi is not what the module says: run make stubs"; exit 1; }
	@echo "all checks passed"

format: $(VENV)/.check ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

stubs: native ## regenerate src/headrace/_native.pyi from the module
	@$(BIN)/python -m nanobind.stubgen -q -m headrace._native -o src/headrace/_native.pyi

sanitize: build/address.sanitized build/thread.sanitized ## native tests under ASan+UBSan, then TSan

build/%.sanitized: FORCE | $(VENV)/.runtime
	$(call say,native tests with HEADRACE_SANITIZE=$*)
	@$(CMAKE_CONFIGURE) -B build/$* -DHEADRACE_SANITIZE=$* \
		-DHEADRACE_BINDINGS=OFF -DCMAKE_BUILD_TYPE=Debug
	@$(BIN)/cmake --build build/$* --target tests -j $(JOBS)
	@$(NO_ASLR) $(BIN)/ctest --test-dir build/$* --output-on-failure --no-tests=error -j $(JOBS)

bench: claim native $(RIVALS) $(if $(filter house,$(CLAIM)),$(VENV)/.test) $(if $(filter door,$(CLAIM)),$(VENV)/.test $(VENV)/.docs) $(filter $(CLAIM)-bench,index-bench) ## run a claim's benchmark: make bench CLAIM=name [QUICK=1] [KEEP=1]
	@PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/$(CLAIM)/run.py \
		$(if $(filter-out 0,$(QUICK)),--quick) $(if $(filter-out 0,$(KEEP)),--keep)

claim:
	@test -n "$(CLAIM)" -a -f "benchmarks/$(CLAIM)/run.py" || { \
		echo "CLAIM is '$(CLAIM)', needs one of:" \
			"$(patsubst benchmarks/%/run.py,%,$(wildcard benchmarks/*/run.py))"; \
		echo "for example: make bench CLAIM=main-job QUICK=1"; exit 2; }

# the index's native benchmark, with its rivals from the system's packages
index-bench: $(RELEASE)/build.ninja
	@for header in absl/container/btree_map.h Judy.h lmdb.h; do \
		echo "#include <$$header>" | $(or $(CXX),g++) -std=c++20 -E -x c++ - > /dev/null 2>&1 \
		|| { echo "$$header not found: install the rivals" \
			"(Debian: apt-get install libabsl-dev libjudy-dev liblmdb-dev)"; exit 1; }; done
	$(call say,building the native benchmark of the index)
	@$(CMAKE_CONFIGURE) -B $(RELEASE) > /dev/null # finds rivals installed since
	@$(BIN)/cmake --build $(RELEASE) --target index_bench -j $(JOBS)

native: $(VENV)/.package $(RELEASE)/build.ninja ## build headrace._native into src/headrace
	$(call say,native build)
	@$(BIN)/cmake --build $(RELEASE) --target _native -j $(JOBS)
	@rm -rf build/stage
	@$(BIN)/cmake --install $(RELEASE) --prefix build/stage > build/install.log
	@rm -rf src/headrace/include && cp -R build/stage/headrace/include src/headrace
	@for place in src/headrace/_native*.so; do \
		[ -e build/stage/headrace/$${place##*/} ] || rm -f $$place; done # of an earlier ABI, which Python may prefer
	@for made in build/stage/headrace/*.so; do place=src/headrace/$${made##*/}; \
		cmp -s $$made $$place || { cp $$made $$place.new && mv $$place.new $$place; }; done # running processes keep the old one

native-tests: $(RELEASE)/build.ninja
	@$(BIN)/cmake --build $(RELEASE) --target tests -j $(JOBS)

$(RELEASE)/build.ninja: | $(VENV)/.runtime
	$(call say,configuring the native build)
	@$(CMAKE_CONFIGURE) -B $(RELEASE) -DCMAKE_BUILD_TYPE=Release

wheel: native $(VENV)/.wheel ## build a wheel and an sdist in dist, and try the wheel without a compiler
	$(call say,building the wheel)
	@rm -rf dist build/wheel
	@$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-build-isolation --no-deps \
		-C build-dir=$(RELEASE) -C cmake.define.HEADRACE_STATIC_TLS=ON -w build/wheel .
	@$(CMAKE_CONFIGURE) -B $(RELEASE) -DHEADRACE_STATIC_TLS=OFF > /dev/null # what it is otherwise
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat $(WHEEL_TAG) -w dist build/wheel/*.whl
	@$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")' > /dev/null
	$(call say,trying the wheel in a clean environment)
	@$(BIN)/python -m benchmarks.instruments.wheel dist tests/golden/written/memory-plan.headrace

clean: ## remove everything that make built (build, .venv, caches)
	rm -rf build $(VENV) src/headrace/_native*.so src/headrace/include .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up: each stamp is older than the file that it was made from, or is made again ------------

$(VENV)/.created:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "no Python 3.11 or newer found: install one," \
		"or name it with make PYTHON=/path/to/python3"; exit 1; }
	@command -v $(or $(CXX),g++) > /dev/null || { echo "no C++ compiler ($(or $(CXX),g++)) found:" \
		"install one (Debian: apt-get install g++)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module:" \
		"install it (Debian: apt-get install python3-venv)"; exit 1; }
	@test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
		|| { echo "$(PYTHON) has no C headers: install them (Debian: apt-get install python3-dev)"; exit 1; }
	$(call say,making $(VENV) with $(PYTHON))
	@rm -rf $(VENV) $(RELEASE) build/address build/thread
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: requirements/runtime.txt requirements/build.txt | $(VENV)/.created
	$(call say,installing headrace's dependencies: torch is large and takes a minute or two)
	@$(PIP) $(addprefix -r ,$^)
	@touch $@

$(VENV)/.package: pyproject.toml | $(VENV)/.runtime
	$(call say,installing headrace itself in place)
	@$(PIP) --quiet --no-build-isolation --no-deps -C wheel.cmake=false -C wheel.py-api=py3 --editable .
	@touch $@

ADDED := $(patsubst requirements/%.txt,$(VENV)/.%,$(filter-out %/runtime.txt %/build.txt,$(wildcard requirements/*.txt)))

$(filter-out %.check,$(ADDED)): | $(VENV)/.runtime
$(VENV)/.check: | $(VENV)/.created # its tools need nothing of headrace's: make format takes seconds
$(ADDED): $(VENV)/.%: requirements/%.txt
	$(call say,installing what make $(firstword $(subst -, ,$*)) needs)
	@$(PIP) --quiet -r $<
	@touch $@

.PHONY: FORCE
FORCE:
