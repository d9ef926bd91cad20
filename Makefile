# make          builds the programs       make help     lists the rest
#
# Variables: CXX, CXXFLAGS (programs and bench; the tests have TEST_CXXFLAGS), LDFLAGS, LDLIBS and BUILD.
# The tests and checks are in tests/tests.mk, tests/check.mk, and a .mk for each other kind.

ifeq ($(origin CXX),default)  # make's default is g++, which a machine with only clang lacks
CXX := c++
endif
CXXFLAGS ?= -O2
BUILD ?= build
CLANGXX ?= clang++
CLANG_FORMAT ?= clang-format

# third_party/include is for copies of picojson.h and doctest/doctest.h, as system headers.
COMMON := -std=c++17 -pthread -isystem third_party/include
SEPARATE := -DOJS_SHUTDOWN_SEPARATE=1
HEADERS := -I. -Iextensions
OBJ := $(BUILD)/obj
# Sub-makes use all cores, unless -j is given.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell getconf _NPROCESSORS_ONLN))

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: examples demo fleet-demo test check ci header amalgamate format clean help FORCE

# ---- programs --------------------------------------------------------------------------------------------------------
#
# examples/NAME.cpp and tools/NAME.cpp are the program build/NAME, and so is a folder of tools/ with a main.cpp.

# These need another library: see `make adapters` and `make queues`.
ADAPTED := tls_worker river_worker amqp_worker amqp_loop redis_streams_worker redis_streams_loop kafka_loop grpc_drain \
    asio_drain
MAINS := $(filter-out $(ADAPTED:%=examples/%.cpp),$(wildcard examples/*.cpp tools/*.cpp tools/*/main.cpp))
TEST_MAINS := $(wildcard tests/process/programs/*.cpp)
# Only shutdown-probe has a hyphen in its name.
name_of = $(subst shutdown_probe,shutdown-probe,$(notdir $(patsubst %/main,%,$(basename $(1)))))
$(foreach main,$(MAINS) $(TEST_MAINS),$(eval sources.$(call name_of,$(main)) := \
    $(if $(filter %/main.cpp,$(main)),$(wildcard $(dir $(main))*.cpp),$(main))))
PROGRAMS := $(foreach main,$(MAINS),$(call name_of,$(main)))
TEST_PROGRAMS := $(foreach main,$(TEST_MAINS),$(call name_of,$(main)))

examples: $(addprefix $(BUILD)/,$(PROGRAMS))  ## every example and tool, as build/NAME (the default)

# A program is one translation unit: compiling the headers for each file of a folder takes four times as long.
$(patsubst %,$(BUILD)/programs/%.cpp,$(PROGRAMS) $(TEST_PROGRAMS)): $(BUILD)/programs/%.cpp: FORCE
	$(call update,printf '#include "%s"\n' $(sources.$*))

# All programs link one object with the definitions, which saves compile time. Only hello_worker, which shows the
# header-only form, does not.
FORM := $(SEPARATE)
$(OBJ)/programs/hello_worker.o: FORM :=
$(BUILD)/hello_worker: $(OBJ)/programs/hello_worker.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
$(patsubst %,$(BUILD)/%,$(filter-out hello_worker,$(PROGRAMS))): $(BUILD)/%: $(OBJ)/programs/%.o \
    $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
# One file to copy to any Linux machine of this processor.
$(BUILD)/static/shutdown-probe: LDFLAGS += -static -s
$(BUILD)/static/shutdown-probe: $(OBJ)/programs/shutdown-probe.o $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
$(OBJ)/%.o: %.S $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS))
$(OBJ)/%.o: %.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(FORM))
$(OBJ)/programs/%.o: $(BUILD)/programs/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(FORM))
$(OBJ)/flags: FORCE
	$(call remember,$(CXX) $(COMMON) $(CXXFLAGS))

demo: deps  ## the demo: a backend, a worker, a SIGTERM, and the outcome of every job
	@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/,demo dev_backend worker)
	@$(BUILD)/demo

fleet-demo: deps  ## a launcher replaces three groups of workers under load; counts lost jobs
	@$(MAKE) -s $(JOBS) $(BUILD)/fleet
	@$(BUILD)/fleet

# $(call compile,COMMAND): compiles the source to an object, and lists its headers in a .d file. While tests run,
# checks.py sets LOWER.
define compile
	@mkdir -p $(@D)
	@echo "compile $@"
	@$(LOWER) $(1) -MMD -MP -MF $(basename $@).d -MT $@ -c $< -o $@
endef

# $(call link,COMMAND): links all objects among the prerequisites.
define link
	@mkdir -p $(@D)
	@echo "link    $@"
	@$(LOWER) $(1) $(filter %.o %.so,$^) $(LDFLAGS) $(LDLIBS) -o $@
endef

# $(call update,COMMAND): writes the command's output to a file, but only if it differs.
define update
	@mkdir -p $(@D)
	@$(1) >$@.new
	@cmp -s $@.new $@ || cp $@.new $@
endef
# Makes objects that were built with other flags out of date.
remember = $(call update,echo '$(1)')

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- checks ----------------------------------------------------------------------------------------------------------

# A check is a target build/results/NAME. Its recipe is $(RUN) COMMAND, which counts passed tests.
RESULTS := $(BUILD)/results
RUN = python3 tests/tools/checks.py one $@
# $(call run_checks,NAMES): builds what they need, runs them in parallel, and sums up even after failures.
run_checks = MAKE='$(MAKE)' python3 tests/tools/checks.py all $(RESULTS) $(1)

test: deps  ## all tests, on the generated header, header-only and separate
	@$(call run_checks,$(TEST_CHECKS))
# A short run of each fuzz target; `make fuzz` runs longer.
check ci: export SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),20)
# Unoptimised, as the programs are compiled for these tests alone. `make dist`, which the tests run too, is optimised.
check ci: export CXXFLAGS := -O0
check ci: export FUZZ_CXXFLAGS := -O0
check: deps-check  ## format, warnings, the tests, and the tests again under the sanitizers
	@$(call run_checks,$(CHECKS))
ci: deps-check deps-container deps-adapters deps-queues  ## what CI runs: `make check`, and the tests of containers, adapters and queues, in parallel
	@$(call run_checks,$(CHECKS) container $(ADAPTERS) $(QUEUES))

include tests/tests.mk tests/check.mk $(wildcard tests/*/*.mk) packaging/packaging.mk

# ---- the rest --------------------------------------------------------------------------------------------------------

# No other target depends on the headers: a stale one must fail the amalgamation check.
header amalgamate:  ## generate ojs_shutdown.hpp, extensions/ and the lists in src/ojs_*.hpp from src/ojs/
	python3 tools/amalgamate.py

format:  ## run clang-format on all files written by hand
	$(CLANG_FORMAT) -i $(HAND_WRITTEN)

.PHONY: api
api: deps-api  ## the API reference, build/api/index.html, and its index docs/api.md, by doxygen
	@BUILD=$(BUILD) python3 -B tools/api_index.py

.PHONY: deps deps-adapters deps-api deps-check deps-container deps-mutants deps-observability deps-queues
deps:  ## what is missing to build and test, installed by apt-get or named
	@CXX='$(CXX)' tools/deps.sh
deps-adapters deps-api deps-check deps-container deps-mutants deps-observability deps-queues: deps-%:  ## the same, and what the checks of that name need
	@CXX='$(CXX)' tools/deps.sh $*

clean:  ## remove build/
	rm -rf $(BUILD)

help:  ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*  ## \(.*\)/\1|\2/p' $(filter Makefile %.mk,$(MAKEFILE_LIST)) | while IFS='|' read -r targets what; do \
	    for target in $$targets; do printf 'make %-19s %s\n' "$$target" "$$what"; done; done
