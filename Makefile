# make          builds the programs       make help     lists the rest
#
# Variables: CXX, CXXFLAGS (programs and bench; the tests have TEST_CXXFLAGS), LDFLAGS, LDLIBS and BUILD.
# tests/tests.mk has the test programs, tests/check.mk the checks, tests/more.mk those outside of `make check`,
# tests/libraries.mk the programs that need another library, bench/bench.mk models and measurements,
# packaging/packaging.mk other processors and the releases.

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
# In a function of make's a backslash before it would stay.
HASH := \#
IMPLEMENTATION := $(OBJ)/tests/link/implementation.o
# examples/NAME.cpp and tools/NAME.cpp are the program build/NAME, and so is a folder of tools/ with a main.cpp. Only
# shutdown-probe has a hyphen in its name.
name_of = $(subst shutdown_probe,shutdown-probe,$(notdir $(patsubst %/main,%,$(basename $(1)))))
MAINS = $(wildcard examples/*.cpp tools/*.cpp tools/*/main.cpp)
PROGRAMS = $(call name_of,$(filter-out $(LIBRARY_PROGRAMS:%=examples/%.cpp),$(MAINS)))
TEST_PROGRAMS = $(call name_of,$(wildcard tests/process/programs/*.cpp))
# What takes longest to build and to run stands first: what begins last must not go on alone.
SUITES := process recovery unit
RULES := tests/libraries.mk tests/check.mk tests/more.mk bench/bench.mk $(wildcard tests/*/*.mk) packaging/packaging.mk tests/tests.mk

MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := examples
.DELETE_ON_ERROR:
.SECONDARY:
.SECONDEXPANSION:  # `$$` in a prerequisite: expanded once the target is known
# Every target that says what it is for.
.PHONY: FORCE $(shell sed -n 's/^\([a-z][a-z -]*\):.*  $(HASH)$(HASH) .*/\1/p' Makefile $(RULES))

# $(call build,PROGRAMS): by a make of its own, after `deps`. It uses all cores, unless -j is given.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell getconf _NPROCESSORS_ONLN))
build = +@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/,$(1))

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
	@$(LOWER) $(1) $(filter %.o %.so %.S,$^) $(LDFLAGS) $(LDLIBS) -o $@
endef

# $(call update,COMMAND): writes the command's output to a file, but only if it differs.
define update
	@mkdir -p $(@D)
	@$(1) >$@.new
	@cmp -s $@.new $@ || cp $@.new $@
endef
# Makes objects that were built with other flags out of date.
remember = $(call update,echo '$(1)')

-include $(shell find $(BUILD) -name debian-13 -prune -o -name '*.d' -print 2>/dev/null)

# ---- checks ----------------------------------------------------------------------------------------------------------

# A check is a target build/results/NAME. Its recipe is $(RUN) COMMAND, which counts passed tests.
RESULTS := $(BUILD)/results
RUN = python3 tests/tools/checks.py one $@
# $(call run_checks,NAMES): builds what they need, runs them in parallel, and sums up even after failures.
run_checks = @MAKE='$(MAKE)' python3 tests/tools/checks.py all $(RESULTS) $(1)
# $(call each,CONFIGURATIONS,NAMES): every pair, as CONFIGURATION/NAME.
each = $(foreach configuration,$(1),$(addprefix $(configuration)/,$(2)))

unit: deps  ## the unit tests on src/: seconds after a change
	$(call run_checks,src-separate/unit)
test: deps  ## all tests, on the generated header, header-only and separate
	$(call run_checks,$(TEST_CHECKS))
include $(RULES)

# ---- programs --------------------------------------------------------------------------------------------------------

examples: $(addprefix $(BUILD)/,$(PROGRAMS))  ## every example and tool, as build/NAME (the default)

# A program is one translation unit: compiling the headers for each file of a folder takes four times as long.
sources_of = $(wildcard $(addsuffix $(subst -,_,$(1)).cpp,examples/ tools/ tests/process/programs/) \
    tools/$(subst -,_,$(1))/*.cpp)
$(patsubst %,$(BUILD)/programs/%.cpp,$(PROGRAMS) $(TEST_PROGRAMS)): $(BUILD)/programs/%.cpp: FORCE
	$(call update,printf '#include "%s"\n' $(call sources_of,$*))

# All programs link one object with the definitions, which saves compile time. Only hello_worker, which shows the
# header-only form, does not.
FORM := $(SEPARATE)
$(OBJ)/programs/hello_worker.o: FORM :=
$(BUILD)/hello_worker: $(OBJ)/programs/hello_worker.o
$(patsubst %,$(BUILD)/%,$(filter-out hello_worker,$(PROGRAMS))): $(BUILD)/%: $(OBJ)/programs/%.o $(IMPLEMENTATION)
# One file to copy to any Linux machine of this processor.
$(BUILD)/static/shutdown-probe: $(OBJ)/programs/shutdown-probe.o $(IMPLEMENTATION)
$(BUILD)/static/shutdown-probe: LDFLAGS += -static -s
$(addprefix $(BUILD)/,$(PROGRAMS) static/shutdown-probe $(OTHER_PROGRAMS)):
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))

# $(call source_of,FILE): generated ones are in build/.
source_of = $(if $(filter programs/% layers/%,$(1)),$(BUILD)/)$(1).cpp
$(OBJ)/%.o: $$(call source_of,$$*) $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(FORM))
$(OBJ)/flags: FORCE
	$(call remember,$(CXX) $(COMMON) $(CXXFLAGS))

demo: deps  ## the demo: a backend, a worker, a SIGTERM, and the outcome of every job
	$(call build,demo dev_backend worker)
	@$(BUILD)/demo
fleet-demo: deps  ## a launcher replaces three groups of workers under load; counts lost jobs
	$(call build,fleet)
	@$(BUILD)/fleet

# ---- the rest --------------------------------------------------------------------------------------------------------

# No other target depends on the headers: a stale one must fail the amalgamation check.
header amalgamate:  ## generate ojs_shutdown.hpp, extensions/ and the lists in src/ojs_*.hpp from src/ojs/
	python3 tools/amalgamate.py
format:  ## run clang-format on all files written by hand
	$(CLANG_FORMAT) -i $(HAND_WRITTEN)
api: deps-api  ## the API reference, build/api/index.html, by doxygen
	@BUILD=$(BUILD) python3 -B tools/api_index.py
deps:  ## what is missing to build and test, installed by apt-get or named
	@CXX='$(CXX)' tools/deps.sh
deps-adapters deps-api deps-check deps-container deps-coverage deps-debian deps-format deps-kafka deps-mutants deps-observability deps-portability deps-queues deps-subprojects: deps-%:  ## the same, and what the checks of that name need
	@CXX='$(CXX)' tools/deps.sh $*
clean:  ## remove build/
	rm -rf $(BUILD)
help:  ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*  ## \(.*\)/\1|\2/p' Makefile $(RULES) | while IFS='|' read -r targets what; do \
	    for target in $$targets; do printf 'make %-19s %s\n' "$$target" "$$what"; done; done
