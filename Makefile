# make          builds the programs       make help     lists the rest
#
# Yours to set: CXX, CXXFLAGS (programs and bench; the tests have TEST_CXXFLAGS), LDFLAGS, LDLIBS and BUILD.
# What is built of the tests, and the checks: tests/tests.mk, tests/check.mk, and a .mk beside each other kind.

ifeq ($(origin CXX),default)  # make's own default is g++, which a machine with clang alone does not have
CXX := c++
endif
CXXFLAGS ?= -O2
BUILD ?= build
CLANGXX ?= clang++
CLANG_FORMAT ?= clang-format

# A hand-copied picojson.h or doctest/doctest.h is found in third_party/include, as a system header.
COMMON := -std=c++17 -pthread -isystem third_party/include
SEPARATE := -DOJS_SHUTDOWN_SEPARATE=1
HEADERS := -I. -Iextensions
OBJ := $(BUILD)/obj
# Sub-makes use all cores, unless the caller said -j.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell getconf _NPROCESSORS_ONLN))

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: examples demo fleet-demo test check ci header amalgamate format clean help FORCE

# ---- programs --------------------------------------------------------------------------------------------------------
#
# examples/NAME.cpp and tools/NAME.cpp are the program build/NAME, and so is a folder of tools/ with a main.cpp.

# Those that want a library of their own: see `make adapters`.
ADAPTED := tls_worker river_worker
MAINS := $(filter-out $(ADAPTED:%=examples/%.cpp),$(wildcard examples/*.cpp tools/*.cpp tools/*/main.cpp))
TEST_MAINS := $(wildcard tests/process/programs/*.cpp)
# Only the command that tries out workers has a hyphen in its name.
name_of = $(subst shutdown_probe,shutdown-probe,$(notdir $(patsubst %/main,%,$(basename $(1)))))
$(foreach main,$(MAINS) $(TEST_MAINS),$(eval sources.$(call name_of,$(main)) := \
    $(if $(filter %/main.cpp,$(main)),$(wildcard $(dir $(main))*.cpp),$(main))))
PROGRAMS := $(foreach main,$(MAINS),$(call name_of,$(main)))
TEST_PROGRAMS := $(foreach main,$(TEST_MAINS),$(call name_of,$(main)))

examples: $(addprefix $(BUILD)/,$(PROGRAMS))  ## every example and tool, as build/NAME (the default)

# A program is one translation unit: compiling the headers anew for each file of a folder takes four times as long.
$(patsubst %,$(BUILD)/programs/%.cpp,$(PROGRAMS) $(TEST_PROGRAMS)): $(BUILD)/programs/%.cpp: FORCE
	$(call update,printf '#include "%s"\n' $(sources.$*))

# One object holds the definitions for all of them, which spares each the time to compile them. Only hello_worker,
# which shows the header-only form, has its own.
FORM := $(SEPARATE)
$(OBJ)/programs/hello_worker.o: FORM :=
$(BUILD)/hello_worker: $(OBJ)/programs/hello_worker.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
$(patsubst %,$(BUILD)/%,$(filter-out hello_worker,$(PROGRAMS))): $(BUILD)/%: $(OBJ)/programs/%.o \
    $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
$(OBJ)/%.o: %.S $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS))
$(OBJ)/%.o: %.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(FORM))
$(OBJ)/programs/%.o: $(BUILD)/programs/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(FORM))
$(OBJ)/flags: FORCE
	$(call remember,$(CXX) $(COMMON) $(CXXFLAGS))

demo: deps  ## the demo: a backend, a worker, a SIGTERM, and what became of every job
	@$(MAKE) -s $(JOBS) examples
	@$(BUILD)/demo

fleet-demo: deps  ## a launcher that replaces three groups of workers under load, and a count of what was lost
	@$(MAKE) -s $(JOBS) $(BUILD)/fleet
	@$(BUILD)/fleet

# $(call compile,COMMAND): the source to an object; the headers it read are noted in a .d file beside it. Beside tests
# checks.py sets LOWER.
define compile
	@mkdir -p $(@D)
	@echo "compile $@"
	@$(LOWER) $(1) -MMD -MP -MF $(basename $@).d -MT $@ -c $< -o $@
endef

# $(call link,COMMAND): all objects among the prerequisites to one program.
define link
	@mkdir -p $(@D)
	@echo "link    $@"
	@$(LOWER) $(1) $(filter %.o %.so,$^) $(LDFLAGS) $(LDLIBS) -o $@
endef

# $(call update,COMMAND): what the command prints, in a file that changes only when that does.
define update
	@mkdir -p $(@D)
	@$(1) >$@.new
	@cmp -s $@.new $@ || cp $@.new $@
endef
# So that what was built with other flags is out of date.
remember = $(call update,echo '$(1)')

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- checks ----------------------------------------------------------------------------------------------------------

# A check is a target build/results/NAME. Its recipe is $(RUN) COMMAND, which counts what passed.
RESULTS := $(BUILD)/results
RUN = python3 tests/tools/checks.py one $@
# $(call run_checks,NAMES): builds what they need, runs them side by side, sums up, whatever fails on the way.
run_checks = MAKE='$(MAKE)' python3 tests/tools/checks.py all $(RESULTS) $(1)

test: deps  ## all tests, on the generated header, header-only and separate
	@$(call run_checks,$(TEST_CHECKS))
# A glance at each fuzz target: `make fuzz` is the look.
check ci: export SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),20)
check: deps-check  ## format, warnings, the tests, and the tests again under the sanitizers
	@$(call run_checks,$(CHECKS))
ci: deps-check deps-container deps-adapters  ## what CI runs: `make check`, `make container-test` and `make adapters-test`, side by side
	@$(call run_checks,$(CHECKS) container $(ADAPTERS))

include tests/tests.mk tests/check.mk $(wildcard tests/*/*.mk) packaging/packaging.mk

# ---- the rest --------------------------------------------------------------------------------------------------------

# The headers are not made on the way to anything else: a stale one must fail the amalgamation check, not heal unseen.
header amalgamate:  ## ojs_shutdown.hpp and extensions/ anew from src/
	python3 tools/amalgamate.py

format:  ## clang-format over everything written by hand
	$(CLANG_FORMAT) -i $(HAND_WRITTEN)

.PHONY: api
api: deps-api  ## the API reference, build/api/index.html, and its index docs/api.md, by doxygen
	@BUILD=$(BUILD) python3 -B tools/api_index.py

.PHONY: deps deps-adapters deps-api deps-check deps-container deps-observability
deps:  ## what is missing to build and test, installed by apt-get or named
	@CXX='$(CXX)' tools/deps.sh
deps-adapters deps-api deps-check deps-container deps-observability: deps-%:  ## the same, and what the checks of that name need
	@CXX='$(CXX)' tools/deps.sh $*

clean:  ## take away build/
	rm -rf $(BUILD)

help:  ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*  ## \(.*\)/\1|\2/p' $(filter Makefile %.mk,$(MAKEFILE_LIST)) | while IFS='|' read -r targets what; do \
	    for target in $$targets; do printf 'make %-19s %s\n' "$$target" "$$what"; done; done
