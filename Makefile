# make          builds the examples       make help     lists the rest
#
# Yours to set: CXX, CXXFLAGS (examples and bench; the tests have TEST_CXXFLAGS), LDFLAGS, LDLIBS and BUILD.

ifeq ($(origin CXX),default)  # make's own default is g++, which a machine with clang alone does not have
CXX := c++
endif
CXXFLAGS ?= -O2
# The tests are compiled many times over, so that compile time counts for more than speed.
TEST_CXXFLAGS ?= -O0
BUILD ?= build
CLANGXX ?= clang++
CLANG_FORMAT ?= clang-format
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# Checks that run, and compilers, at the same time: tests mostly wait, and what compiles yields to them.
TEST_JOBS ?= $(shell echo $$(($(PROCESSORS) + 4)))

# A hand-copied picojson.h or doctest/doctest.h is found in third_party/include, as a system header.
COMMON := -std=c++17 -pthread -isystem third_party/include
SEPARATE := -DOJS_SHUTDOWN_SEPARATE=1
HEADERS := -I. -Iextensions
OBJ := $(BUILD)/obj
RESULTS := $(BUILD)/results
TALLY := python3 tools/tally.py
# For what compiles and measures no time, so that it takes from the tests beside it no more than they leave. Beside tests
# (YIELDING), what they are made of goes before checks that only compile, and the one that takes a minute before the rest.
YIELD := nice -n 19
PRIORITY = $(if $(YIELDING),nice -n 10)
# Sub-makes use all cores, unless the caller said -j.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(PROCESSORS))

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: examples demo fleet-demo test fuzz duress check ci bench container-test interop-test server-test conformance grpc-bridge httplib-drain adapters adapters-test river-interop river-chaos river-bench deps deps-check deps-container deps-adapters header amalgamate format clean help FORCE

# ---- programs --------------------------------------------------------------------------------------------------------
#
# examples/NAME.cpp and tools/NAME.cpp are the program build/NAME, and so is a folder of tools/ with a main.cpp.

FOLDERS := $(patsubst %/main.cpp,%,$(wildcard tools/*/main.cpp))
TEST_ONLY := $(patsubst tests/process/programs/%.cpp,%,$(wildcard tests/process/programs/*.cpp))
# Those that want a library of their own: see `make adapters`.
ADAPTED := tls_worker river_worker
# $(sources.NAME): what that program is made of.
$(foreach file,$(filter-out $(ADAPTED:%=examples/%.cpp),$(wildcard examples/*.cpp tools/*.cpp tests/process/programs/*.cpp)), \
    $(eval sources.$(basename $(notdir $(file))) := $(file)))
name_of = $(subst shutdown_probe,shutdown-probe,$(notdir $(1)))
$(foreach folder,$(FOLDERS),$(eval sources.$(call name_of,$(folder)) := $(wildcard $(folder)/*.cpp)))
PROGRAMS := $(patsubst sources.%,%,$(sort $(filter sources.%,$(.VARIABLES))))
EXAMPLES := $(addprefix $(BUILD)/,$(filter-out $(TEST_ONLY),$(PROGRAMS)))

examples: $(EXAMPLES)  ## every example, as build/NAME (the default)

# A program is one translation unit: compiling the headers anew for each file of a folder takes four times as long.
$(PROGRAMS:%=$(BUILD)/programs/%.cpp): $(BUILD)/programs/%.cpp: FORCE
	$(call update,printf '#include "%s"\n' $(sources.$*))

# One object holds the definitions for all of them, which spares each the time to compile them. Only hello_worker, which
# shows the header-only form, has its own.
FORM := $(SEPARATE)
$(OBJ)/programs/hello_worker.o: FORM :=
$(BUILD)/hello_worker: $(OBJ)/programs/hello_worker.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
$(filter-out $(BUILD)/hello_worker,$(EXAMPLES)): $(BUILD)/%: $(OBJ)/programs/%.o $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
# What an empty image holds, as examples/deploy/controller.Dockerfile builds it. The worker's is smaller: `make dist`.
STATIC := -static -s -Wl,-e,hold_signals
$(BUILD)/static_%: $(addprefix $(OBJ)/,programs/%.o examples/deploy/hold_signals.o tests/link/implementation.o)
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS) $(STATIC))
$(BUILD)/bench: $(patsubst %.cpp,$(OBJ)/%.o,$(wildcard tests/bench/*.cpp)) $(OBJ)/tests/link/implementation.o
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

bench: deps  ## measurements, each beside a floor measured in the same run
	@$(MAKE) -s $(JOBS) examples $(BUILD)/bench
	@CXX='$(CXX)' $(BUILD)/bench

# $(call compile,COMMAND): the source to an object; the headers it read are noted in a .d file beside it.
define compile
	@mkdir -p $(@D)
	@echo "compile $@"
	@$(PRIORITY) $(1) -MMD -MP -MF $(basename $@).d -MT $@ -c $< -o $@
endef

# $(call link,COMMAND): all objects among the prerequisites to one program.
define link
	@mkdir -p $(@D)
	@echo "link    $@"
	@$(PRIORITY) $(1) $(filter %.o %.so,$^) $(LDFLAGS) $(LDLIBS) -o $@
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

# ---- test programs: the same sources in many configurations ----------------------------------------------------------
#
# build/test/CONFIGURATION/ holds `unit`, `process` and `recovery`, the programs that the latter two start, and the link
# tests. In the pattern rules of this part, % is the configuration.

# Assertions without a try around each: an exception fails the case all the same, and a quarter less is compiled.
# And picojson trusts the locale to have a decimal point, which shows where the library does not see to that.
DOCTEST := -Itests -Itests/support -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS -DPICOJSON_USE_LOCALE=0
TEST := $(COMMON) $(TEST_CXXFLAGS) $(DOCTEST)
SANITIZED := g++ $(COMMON) $(DOCTEST) -g1 $(HEADERS) -fno-sanitize-recover=all
compiler.src             := $(CXX) $(TEST) -Isrc
compiler.src-separate    := $(CXX) $(TEST) -Isrc $(SEPARATE)
compiler.header          := $(CXX) $(TEST) $(HEADERS)
compiler.header-separate := $(CXX) $(TEST) $(HEADERS) $(SEPARATE)
compiler.header-hidden   := $(CXX) $(TEST) $(HEADERS) -fPIC -fvisibility=hidden
# Separate where the form is not what is tested: that compiles in half the time.
compiler.fallback        := $(CXX) $(TEST) $(HEADERS) $(SEPARATE) -DOJS_SHUTDOWN_USE_EVENTFD=0 -DOJS_SHUTDOWN_USE_PROC=0 \
                            -DOJS_SHUTDOWN_USE_UNWIND=0 -DOJS_SHUTDOWN_USE_PIDFD=0 -DOJS_SHUTDOWN_USE_CLOSE_RANGE=0 \
                            -DOJS_SHUTDOWN_USE_INOTIFY=0
compiler.clang           := $(CLANGXX) $(TEST) $(HEADERS) $(SEPARATE)
# What compiles fastest: optimised, the first one takes three times as long, and the second one half as long again.
compiler.asan            := $(SANITIZED) -O0 -fsanitize=address -fsanitize=undefined $(SEPARATE)
compiler.tsan            := $(SANITIZED) -Og -fsanitize=thread $(SEPARATE)
CONFIGURATIONS := $(patsubst compiler.%,%,$(filter compiler.%,$(.VARIABLES)))

# Where SQLite is not installed, dev_backend is built without --store.
$(BUILD)/dev_backend $(CONFIGURATIONS:%=$(BUILD)/test/%/dev_backend): \
    LDLIBS += $(shell echo '\#include <sqlite3.h>' | $(CXX) -E -x c - >/dev/null 2>&1 && echo -lsqlite3)

ROOMS := base core host net worker server operating spool child_process coordinator launcher
$(foreach room,$(ROOMS),$(eval TESTS.$(room) := $(wildcard tests/$(room)/*.cpp tests/$(room)/*/*.cpp)))
# What a process that died leaves to the next; all other tests of whole processes. About as long each, side by side.
TESTS.recovery := $(patsubst %,tests/process/%.cpp,checkpoints controller probe spool spool_crash)
TESTS.process := $(filter-out %/harness.cpp $(TESTS.recovery),$(wildcard tests/process/*.cpp))
# Here and below, what takes longest to build and to run stands first: what begins last must not go on alone.
SUITES := process recovery unit
# The programs they start.
STARTED := $(filter-out hello_worker,$(PROGRAMS))
# Where examples/deploy/hold_signals.S knows the processor. Elsewhere the tests with it are skipped, and say so.
STATIC_WORKER := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m)),static_worker)
# In one configuration for all of them: what judges and need not be judged, the worker of the image, and doctest itself.
ONCE := header-separate

T := $(BUILD)/test/%
O := $(BUILD)/test/%/obj
$T/shutdown-probe: $(BUILD)/test/$(ONCE)/shutdown-probe
	@cp $< $@
$T/static_worker: $(BUILD)/test/$(ONCE)/static_worker
	@cp $< $@
$(BUILD)/test/$(ONCE)/static_worker: $(addprefix $(BUILD)/test/$(ONCE)/obj/, \
    programs/worker.o examples/deploy/hold_signals.o tests/link/implementation.o)
	$(call link,$(compiler.$(ONCE)) $(STATIC))
$(BUILD)/test/$(ONCE)/obj/%.o: %.S
	$(call compile,$(compiler.$(ONCE)))

# Two files that must share one process-wide state: both header-only; one of each form; the second in a shared library,
# all with hidden visibility.
$T/two_units: $O/tests/link/first.o $O/tests/link/second.o
	$(call link,$(compiler.$*))
$T/mixed: $O/tests/link/first.o $T-separate/obj/tests/link/second.o $T-separate/obj/tests/link/implementation.o
	$(call link,$(compiler.$*))
$T/libsecond.so: $T-hidden/obj/tests/link/second.o
	$(call link,$(compiler.$*) -shared)
$T/hidden: $T-hidden/obj/tests/link/first.o $T/libsecond.so
	$(call link,$(compiler.$*))

# The header beside itself under another version's name, which must have no symbol of ours in common with it.
$T/versions: $O/tests/link/versions.o $O/tests/link/other_version.o $O/tests/link/implementation.o
	@for each in $(wordlist 1,2,$^); do nm --defined-only $$each | sed -n 's/.* [A-Zuv] //p' | sort -u; done | sort | \
	    uniq -d | { ! grep -E '3ojs|ojs_'; }
	$(call link,$(compiler.$*))
$O/tests/link/other_version.o: tests/link/other_version.cpp $(BUILD)/other_version.hpp $T/flags
	$(call compile,$(compiler.$*) -I$(BUILD))
$(BUILD)/other_version.hpp: ojs_shutdown.hpp
	@mkdir -p $(@D)
	@sed -e 's/\<v[0-9]*_[0-9]*_[0-9]*\>/v0_0_0/g' -e 's/^\(#define OJS_SHUTDOWN_VERSION \).*/\1"0.0.0"/' $< >$@

# Real code of src/ojs/core, with the atomics of a model checker under it.
$T/weak_memory: $O/tests/model/weak_memory.o
	$(call link,$(compiler.$*))

# The tests include test.hpp precompiled, which takes about half off their compile time. -w: as the main file of a
# compilation a header is warned about for its `#pragma once`.
$T/support/test.hpp.gch: tests/support/test.hpp $T/flags
	$(call compile,$(compiler.$*) -w -x c++-header)
$T/flags: FORCE
	$(call remember,$(compiler.$*))

# The tests of a room are one translation unit: compiling the library anew for each of ninety files takes the time of all
# else together. Where each holds the whole library, all rooms are one; where the point is to compile little after a
# change, each file is one.
TESTS.rooms := $(foreach room,$(ROOMS),$(TESTS.$(room)))
FILE_BY_FILE := src-separate
ALL_IN_ONE := src header
# $(call test_objects,CONFIGURATION,ROOM): `rooms` are all of them.
test_objects = $(addprefix $(BUILD)/test/$(1)/obj/,$(if $(filter $(FILE_BY_FILE),$(1)), \
                   $(patsubst %.cpp,%.o,$(TESTS.$(2))),$(patsubst %,rooms/%.o, \
                   $(if $(filter-out $(ALL_IN_ONE),$(1)),$(patsubst rooms,$(ROOMS),$(2)),$(2)))))
$(patsubst %,$(BUILD)/rooms/%.cpp,$(ROOMS) rooms process recovery): $(BUILD)/rooms/%.cpp: tests/tools/room.sh FORCE
	$(call update,$< $(TESTS.$*))

# Whose doctest cannot be that of the others.
OWN_DOCTEST := asan tsan
WITH_TEST_HPP := $(foreach room,$(ROOMS) process recovery,$(TESTS.$(room))) tests/process/harness.cpp

# What has two stems, the configuration and the file, is a template: $(1) is the configuration, $(2) its folder. Every
# program links implementation.cpp. In the separate form it holds the definitions; else it is one more file that includes
# the header.
define configuration_rules
$(2)/obj/%.o: %.cpp $(2)/flags
	$$(call compile,$$(compiler.$(1)))
$(2)/obj/programs/%.o: $(BUILD)/programs/%.cpp $(2)/flags
	$$(call compile,$$(compiler.$(1)) $(HEADERS))
$(patsubst %.cpp,$(2)/obj/%.o,$(WITH_TEST_HPP)): $(2)/obj/%.o: %.cpp $(2)/support/test.hpp.gch
	$$(call compile,$$(compiler.$(1)) -include $(2)/support/test.hpp)
$(2)/obj/rooms/rooms.o: PRIORITY = $$(if $$(YIELDING),nice -n 5)
$(2)/obj/rooms/%.o: $(BUILD)/rooms/%.cpp $(2)/support/test.hpp.gch
	$$(call compile,$$(compiler.$(1)) -include $(2)/support/test.hpp)

$(2)/unit: $(call test_objects,$(1),rooms)
$(2)/process: $(call test_objects,$(1),process)
$(2)/recovery: $(call test_objects,$(1),recovery)
$(2)/process $(2)/recovery: $(2)/obj/tests/process/harness.o | $(addprefix $(2)/,$(STARTED) $(STATIC_WORKER))
$(addprefix $(2)/,$(SUITES)): $(2)/obj/tests/link/implementation.o \
    $(BUILD)/test/$(if $(filter $(OWN_DOCTEST),$(1)),$(1),$(ONCE))/obj/tests/main.o
	$$(call link,$$(compiler.$(1)))
$(addprefix $(2)/,$(if $(filter $(ONCE),$(1)),$(STARTED),$(filter-out shutdown-probe,$(STARTED)))): \
$(2)/%: $(2)/obj/programs/%.o $(2)/obj/tests/link/implementation.o
	$$(call link,$$(compiler.$(1)))
endef
$(foreach configuration,$(CONFIGURATIONS),$(eval \
    $(call configuration_rules,$(configuration),$(BUILD)/test/$(configuration))))

# ---- make test -------------------------------------------------------------------------------------------------------
#
# Each check runs under tally.py, which leaves its counts in build/results/CHECK.

# $(call each,CONFIGURATIONS,NAMES): every pair, as CONFIGURATION/NAME.
each = $(foreach configuration,$(1),$(addprefix $(configuration)/,$(2)))
COMPILE_TESTS := $(patsubst tests/compile/%.cpp,compile/%,$(wildcard tests/compile/*.cpp))

# All tests on the header; those of units in both its forms. That src/ is the same code is what `amalgamation` proves;
# that it works as it is, two_units.
TEST_PROGRAMS := header/unit $(call each,header-separate,$(SUITES) versions) $(call each,header,two_units mixed hidden) \
                 src/two_units src/weak_memory
TEST_CHECKS := amalgamation tools $(call each,header,$(COMPILE_TESTS)) $(TEST_PROGRAMS)

test: deps  ## all tests, on the generated header, header-only and separate
	$(call run_checks,$(TEST_CHECKS))

# $(call run_checks,CHECKS): builds what they need, runs them, sums up, whatever fails on the way. A check begins as soon as
# its programs are there: while tests wait, the rest is compiled, at a priority that takes nothing from them.
define run_checks
	@rm -rf $(RESULTS)
	@$(MAKE) -s -k -j$(TEST_JOBS) YIELDING=1 $(addprefix $(RESULTS)/,$(call longest_first,$(1))) || true
	@$(TALLY) sum $(addprefix $(RESULTS)/,$(1))
endef
# In what order checks begin: the minutes first, as what begins last must not go on alone; what takes seconds fills up the
# end.
LONGEST := header/unit asan/% tsan/% packaging container %/process %/recovery %/unit recipes tools \
           warnings/g++/optimised %/c++17 %/weak_memory variants warnings/%
longest_first = $(foreach each,$(LONGEST),$(filter $(each),$(1))) $(filter-out $(LONGEST),$(1))

# ThreadSanitizer of GCC before 14 does not start where addresses are strongly randomised. A worker whose handler never
# returns exits with that thread still there; that is its task, not a leak.
# 600 seconds are few for it on two busy processors.
limit.tsan := --limit 1500
run.tsan := env TSAN_OPTIONS=report_thread_leaks=0 $(shell setarch -R true 2>/dev/null && echo setarch -R)

# --duration: after a crash, the last case named is the last one that came to its end.
$(RESULTS)/%: $(BUILD)/test/% FORCE
	@OJS_TEST_BIN=$(abspath $(BUILD)/test/$(*D)) $(TALLY) run $(limit.$(*D)) $@ $(run.$(*D)) $(BUILD)/test/$* --duration=true
$(RESULTS)/header/compile/%: tests/compile/%.cpp FORCE
	@$(YIELD) $(TALLY) run $@ tests/compile/compile.sh $< $(CXX) $(COMMON) $(HEADERS)
$(RESULTS)/amalgamation: FORCE
	@$(YIELD) $(TALLY) run $@ python3 tools/amalgamate.py --check
$(RESULTS)/tools: FORCE
	@$(YIELD) $(TALLY) run $@ python3 -B -m unittest discover -s tests/tools

# ---- make fuzz -------------------------------------------------------------------------------------------------------

# All targets are one program, which looks at the name it is started by.
FUZZ_TARGETS := $(notdir $(wildcard tests/fuzz/corpus/*))
FUZZ := $(addprefix fuzz/,$(FUZZ_TARGETS))
# For all targets together, on all processors.
SECONDS ?= 60
FUZZ_SECONDS := $(shell echo $$(( ($(SECONDS) * $(PROCESSORS) + $(words $(FUZZ)) - 1) / $(words $(FUZZ)) )))
# Without inotify, of which the kernel takes milliseconds to take a watch back: more than all else of a run.
compiler.fuzz := $(CLANGXX) $(COMMON) $(HEADERS) -O1 -g1 -fsanitize=fuzzer -fsanitize=address -fsanitize=undefined \
                 -fno-sanitize-recover=all -DOJS_SHUTDOWN_USE_INOTIFY=0

fuzz: deps-check  ## random inputs and what must hold for each, 60 s in all; another time: make fuzz SECONDS=600
	$(call run_checks,$(FUZZ))
	@grep -H '^stat::number_of_executed_units' $(addsuffix .log,$(addprefix $(BUILD)/,$(FUZZ))) || true

$(BUILD)/fuzz/flags: FORCE
	$(call remember,$(compiler.fuzz))
$(BUILD)/fuzz/main.o: tests/fuzz/main.cpp $(BUILD)/fuzz/flags
	$(call compile,$(compiler.fuzz))
$(BUILD)/fuzz/main: $(BUILD)/fuzz/main.o
	$(call link,$(compiler.fuzz))
$(addprefix $(BUILD)/,$(FUZZ)): $(BUILD)/fuzz/main
	@ln -f $< $@
$(RESULTS)/fuzz/%: $(BUILD)/fuzz/% FORCE
	@$(YIELD) $(TALLY) run --limit $$(($(FUZZ_SECONDS) + 300)) $@ tests/fuzz/run.sh $< $(FUZZ_SECONDS)

# ---- make check ------------------------------------------------------------------------------------------------------

CHECK_PROGRAMS := $(call each,asan tsan,$(SUITES)) $(call each,fallback clang,unit) $(TEST_PROGRAMS)
CHECKS = format variants $(WARNED) warnings/g++/optimised $(FUZZ) $(filter-out $(TEST_PROGRAMS),$(TEST_CHECKS)) \
         $(CHECK_PROGRAMS)

# A glance at each fuzz target: `make fuzz` is the look.
check ci: export SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),20)
check: deps-check  ## format, warnings, the tests, and the tests again under the sanitizers
	$(call run_checks,$(CHECKS))
ci: deps-check deps-container deps-adapters  ## what CI runs: `make check`, `make container-test` and `make adapters-test`, side by side
	$(call run_checks,$(CHECKS) container $(ADAPTERS))

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wundef \
            -Wnull-dereference -Wzero-as-null-pointer-constant -Wextra-semi -Wswitch-enum -Werror
# Not the templates: the order of their includes is the order of the parts, which clang-format would sort.
HAND_WRITTEN := $(filter-out $(wildcard src/*.hpp),$(shell find src tests examples tools -name '*.[chi]pp' 2>/dev/null))

# $(warned.NAME): the command of warnings/NAME. It compiles the header-only form, then the separate form.
SYNTAX := $(COMMON) -fsyntax-only $(WARNINGS)
$(foreach standard,c++17 c++20 c++2b,$(eval warned.g++/$(standard) := g++ $(SYNTAX) $(HEADERS) -std=$(standard)) \
                                     $(eval warned.clang++/$(standard) := $(CLANGXX) $(SYNTAX) $(HEADERS) -std=$(standard)))
warned.g++/src     := g++ $(SYNTAX) -Isrc
warned.clang++/src := $(CLANGXX) $(SYNTAX) -Isrc
warned.no-eventfd  := g++ $(SYNTAX) $(HEADERS) -DOJS_SHUTDOWN_USE_EVENTFD=0
warned.no-proc     := g++ $(SYNTAX) $(HEADERS) -DOJS_SHUTDOWN_USE_PROC=0 -DOJS_SHUTDOWN_USE_UNWIND=0
warned.no-pidfd    := g++ $(SYNTAX) $(HEADERS) -DOJS_SHUTDOWN_USE_PIDFD=0 -DOJS_SHUTDOWN_USE_CLOSE_RANGE=0
warned.no-inotify  := g++ $(SYNTAX) $(HEADERS) -DOJS_SHUTDOWN_USE_INOTIFY=0
WARNED := $(patsubst warned.%,warnings/%,$(sort $(filter warned.%,$(.VARIABLES))))
# The programs too, as they are built.
programs.g++/c++17     := $(PROGRAMS:%=$(BUILD)/programs/%.cpp)
programs.clang++/c++17 := $(programs.g++/c++17)
$(RESULTS)/warnings/g++/c++17 $(RESULTS)/warnings/clang++/c++17: $(programs.g++/c++17)
$(addprefix $(RESULTS)/,$(WARNED)): $(RESULTS)/warnings/%: FORCE
	@$(YIELD) $(TALLY) run $@ sh -c '$(warned.$*) tests/link/first.cpp && \
	    $(warned.$*) $(SEPARATE) tests/link/implementation.cpp $(programs.$*)'
# Some warnings (null dereference, uninitialised values, ignored results) come from the optimiser alone.
$(RESULTS)/warnings/g++/optimised: FORCE
	@$(YIELD) $(TALLY) run --limit 2400 $@ g++ $(COMMON) $(HEADERS) $(WARNINGS) -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 $(SEPARATE) \
	    -c tests/link/implementation.cpp -o /dev/null
$(RESULTS)/format: FORCE
	@$(YIELD) $(TALLY) run $@ $(CLANG_FORMAT) --dry-run -Werror $(HAND_WRITTEN)
$(RESULTS)/variants: FORCE
	@$(YIELD) $(TALLY) run $@ tests/tools/variants.sh $(BUILD)/variants $(CXX) $(COMMON)

# ---- make duress -----------------------------------------------------------------------------------------------------

# Not part of `make check`: it takes an hour and more. One after the other, each having the machine to itself.
DURESS := $(foreach kind,busy quota freezes one-cpu bare,$(addprefix duress/$(kind)/,$(SUITES)))

duress: deps  ## the tests on a machine that is busy, slow, still for moments, or bare
	@rm -rf $(RESULTS)/duress
	@$(MAKE) -s -k $(JOBS) $(addprefix $(BUILD)/test/header-separate/,$(SUITES)) || true
	@$(MAKE) -s -k -j1 $(addprefix $(RESULTS)/,$(DURESS)) || true
	@$(TALLY) sum $(addprefix $(RESULTS)/,$(DURESS))
$(addprefix $(RESULTS)/,$(DURESS)): FORCE
	@OJS_TEST_BIN=$(abspath $(BUILD)/test/header-separate) $(TALLY) run --limit 3000 $@ \
	    tests/tools/duress.sh $(notdir $(@D)) $(abspath $(BUILD)/test/header-separate/$(@F)) --duration=true

# ---- make container-test ---------------------------------------------------------------------------------------------

# And the static workers, see packaging.mk.
IN_CONTAINER := dev_backend static_controller launcher lifecycle_runner
container-test: deps deps-container  ## the worker in an image made FROM scratch, run by podman, and under PID 1 wrappers; the launcher under systemd
	@rm -rf $(RESULTS)/container
	@$(MAKE) -s $(JOBS) $(RESULTS)/container
	@$(TALLY) sum $(RESULTS)/container
$(RESULTS)/container: $(addprefix $(BUILD)/,$(IN_CONTAINER)) FORCE
	@OJS_TEST_BUILD=$(BUILD) $(TALLY) run $@ python3 -B tests/container/container_test.py

# ---- make observability-test -----------------------------------------------------------------------------------------

OBSERVED := launcher lifecycle_runner worker
OBSERVABILITY := $(patsubst tests/%_test.py,%,$(wildcard tests/observability/*_test.py))
.PHONY: observability-test deps-observability
observability-test: deps deps-observability  ## the status page in Chromium, dashboard and alert rules with Prometheus
	@rm -rf $(RESULTS)/observability
	@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/,$(OBSERVED))
	@$(MAKE) -s -j1 $(addprefix $(RESULTS)/,$(OBSERVABILITY))
	@$(TALLY) sum $(addprefix $(RESULTS)/,$(OBSERVABILITY))
$(addprefix $(RESULTS)/,$(OBSERVABILITY)): $(RESULTS)/%: FORCE
	@OJS_TEST_BUILD=$(BUILD) $(TALLY) run $@ python3 -B tests/$*_test.py
deps-observability:  ## the same for `make observability-test`: chromium and prometheus
	@CXX='$(CXX)' tools/deps.sh observability

# ---- make interop-test -----------------------------------------------------------------------------------------------

# Not part of `make check`: it wants node, and the network once.
interop-test: deps grpc-bridge httplib-drain  ## the coordinator and the launcher against connect-node, curl and gRPC clients
	@rm -rf $(RESULTS)/interop $(RESULTS)/server
	@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/,lifecycle_runner launcher dev_backend worker)
	@$(MAKE) -s -j1 $(RESULTS)/interop $(RESULTS)/server
	@$(TALLY) sum $(RESULTS)/interop $(RESULTS)/server
$(RESULTS)/interop: FORCE
	@$(TALLY) run $@ tests/interop/run.sh $(BUILD)
$(RESULTS)/server: FORCE
	@$(TALLY) run $@ tests/interop/server.sh $(BUILD)
# Of the server; empty: dev_backend, started for it.
URL ?=
server-test: deps  ## what a running OJS server holds when workers stop and die: make server-test URL=http://127.0.0.1:8080
	@$(MAKE) -s $(JOBS) $(BUILD)/dev_backend $(BUILD)/worker
	@tests/interop/server.sh $(BUILD) $(URL)

# An example that is built only where its library is installed: examples/grpc_bridge/.
GRPC := grpc++ protobuf
GRPC_CODE := $(BUILD)/grpc
grpc-bridge: deps  ## build/grpc_bridge, which serves a coordinator over gRPC, where libgrpc++ is installed
	@if pkg-config --exists $(GRPC) && command -v protoc grpc_cpp_plugin >/dev/null; then \
	    $(MAKE) -s $(JOBS) $(BUILD)/grpc_bridge; else \
	    echo "left out: grpc_bridge; apt-get install libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc pkg-config"; fi
$(GRPC_CODE)/lifecycle.pb.cc: examples/proto/lifecycle.proto
	@mkdir -p $(@D)
	@protoc -I $(<D) --cpp_out=$(@D) --grpc_out=$(@D) --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) $<
# Generated by protoc from the same file, at the same time.
$(GRPC_CODE)/lifecycle.grpc.pb.cc: $(GRPC_CODE)/lifecycle.pb.cc
$(OBJ)/grpc/%.o: $(GRPC_CODE)/%.cc $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) -I$(GRPC_CODE) $$(pkg-config --cflags $(GRPC)))
$(OBJ)/grpc/bridge.o: examples/grpc_bridge/bridge.cpp $(GRPC_CODE)/lifecycle.pb.cc $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) -isystem $(GRPC_CODE) $$(pkg-config --cflags $(GRPC)))
$(BUILD)/grpc_bridge: LDLIBS += $(shell pkg-config --libs $(GRPC) 2>/dev/null)
$(BUILD)/grpc_bridge: $(addprefix $(OBJ)/,grpc/bridge.o grpc/lifecycle.pb.o grpc/lifecycle.grpc.pb.o tests/link/implementation.o)
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))

# The same with cpp-httplib: examples/httplib_drain/.
httplib-drain: deps  ## build/httplib_drain, a server of cpp-httplib that ends in order, where that is installed
	@if pkg-config --exists cpp-httplib; then $(MAKE) -s $(JOBS) $(BUILD)/httplib_drain; else \
	    echo "left out: httplib_drain; apt-get install libcpp-httplib-dev pkg-config"; fi
$(OBJ)/httplib_drain.o: examples/httplib_drain/server.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) $$(pkg-config --cflags cpp-httplib))
$(BUILD)/httplib_drain: LDLIBS += $(shell pkg-config --libs cpp-httplib 2>/dev/null)
$(BUILD)/httplib_drain: $(OBJ)/httplib_drain.o $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))

# ---- make adapters-test ----------------------------------------------------------------------------------------------

# The extensions that need another library, a worker for each, and what its tests need.
ON_OPENSSL := tls_worker https_client https_probe_worker
ON_LIBPQ := river_worker river_probe_worker river_contract river_bench
adapters: deps  ## build/tls_worker, over https://, and build/river_worker, on River's queue, where OpenSSL and libpq are installed
	@if echo '#include <openssl/ssl.h>' | $(CXX) -E -x c - >/dev/null 2>&1; then \
	    $(MAKE) -s $(JOBS) $(BUILD)/tls_worker; else echo "left out: tls_worker; apt-get install libssl-dev"; fi
	@if echo '#include <libpq-fe.h>' | $(CXX) $(LIBPQ) -E -x c - >/dev/null 2>&1; then \
	    $(MAKE) -s $(JOBS) $(BUILD)/river_worker; else echo "left out: river_worker; apt-get install libpq-dev"; fi
# A class of tests each has a server of its own, so that they run side by side.
ADAPTERS := $(addprefix adapters/,tls warnings $(addprefix river/,Work Notices Stops Crashes BadInput Contract Chaos))
adapters-test: deps deps-adapters  ## ojs_tls.hpp and ojs_river.hpp against openssl s_server, nginx and PostgreSQL
	$(call run_checks,$(ADAPTERS))
$(RESULTS)/adapters/tls: $(ON_OPENSSL:%=$(BUILD)/%) $(BUILD)/dev_backend $(BUILD)/shutdown-probe FORCE
	@OJS_TEST_BUILD=$(BUILD) $(TALLY) run $@ python3 -B tests/adapters/tls_test.py
$(RESULTS)/adapters/river/%: $(addprefix $(BUILD)/,river_worker river_probe_worker river_contract) FORCE
	@OJS_TEST_BUILD=$(BUILD) $(TALLY) run $@ python3 -B tests/adapters/river_test.py $*

# Both forms; the separate one without libpq's headers.
WITH_ADAPTERS := -include ojs_tls.hpp -include ojs_river.hpp -x c++ /dev/null
$(RESULTS)/adapters/warnings: FORCE
	@$(YIELD) $(TALLY) run $@ sh -c 'g++ $(SYNTAX) $(HEADERS) $(LIBPQ) $(WITH_ADAPTERS) && \
	    g++ $(SYNTAX) $(HEADERS) $(SEPARATE) $(WITH_ADAPTERS)'

# Not part of `make check`: they want Go, and once the network for River's own client; the last two take minutes.
river-interop: deps deps-adapters  ## ojs_river.hpp beside River's clients in Go and Python
	@$(MAKE) -s $(JOBS) $(BUILD)/river_worker $(BUILD)/river_probe_worker
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/adapters/river_interop_test.py
river-chaos: deps deps-adapters  ## workers killed, PostgreSQL restarted, and an account of 20,000 jobs; others: make river-chaos JOBS_TO_RUN=N
	@$(MAKE) -s $(JOBS) $(BUILD)/river_probe_worker
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/adapters/river_chaos.py --jobs $(or $(JOBS_TO_RUN),20000)
river-bench: deps deps-adapters  ## jobs a second, beside the same SQL in a bare loop and River's own worker
	@$(MAKE) -s $(JOBS) $(BUILD)/river_worker $(BUILD)/river_bench
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/adapters/river_bench.py
# Where Debian and others have libpq's headers; elsewhere they are on the compiler's path.
LIBPQ := $(addprefix -isystem ,$(wildcard /usr/include/postgresql))
$(OBJ)/adapters/%.o: examples/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) $(LIBPQ))
$(OBJ)/adapters/river_contract.o: CXXFLAGS += -Itests/support
$(OBJ)/adapters/%.o: tests/adapters/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) $(LIBPQ))
$(ON_OPENSSL:%=$(BUILD)/%): LDLIBS += -lssl -lcrypto
$(ON_LIBPQ:%=$(BUILD)/%): LDLIBS += -lpq
# Each extension's definitions are in an object of its own, since not every machine has both libraries. river_contract and
# river_bench use internals and define OJS_SHUTDOWN_IMPLEMENTATION themselves.
$(ON_OPENSSL:%=$(BUILD)/%): $(OBJ)/adapters/implementation_tls.o
$(BUILD)/river_worker $(BUILD)/river_probe_worker: $(OBJ)/adapters/implementation_river.o
$(addprefix $(BUILD)/,$(ON_OPENSSL) $(ON_LIBPQ)): $(BUILD)/%: $(OBJ)/adapters/%.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
deps-adapters:  ## the same for `make adapters-test`: OpenSSL, nginx, libpq and PostgreSQL
	@CXX='$(CXX)' tools/deps.sh adapters

# Not part of `make check`: it wants the suites, and a runner that you have built.
RUNNER ?=
SUITE_DIR ?= ../ojs-conformance/suites
conformance: deps  ## dev_backend against the published suites: make conformance RUNNER='COMMAND' SUITE_DIR=DIR
	@$(MAKE) -s $(JOBS) $(BUILD)/dev_backend
	@tests/conformance/run.sh $(BUILD) '$(SUITE_DIR)' '$(RUNNER)'

# ---- the rest --------------------------------------------------------------------------------------------------------

# The headers are not made on the way to anything else: a stale one must fail the amalgamation check, not heal unseen.
header amalgamate:  ## ojs_shutdown.hpp and extensions/ anew from src/
	python3 tools/amalgamate.py

format:  ## clang-format over everything written by hand
	$(CLANG_FORMAT) -i $(HAND_WRITTEN)

deps:  ## what is missing to build and test, installed by apt-get or named
	@CXX='$(CXX)' tools/deps.sh
deps-check:  ## the same for `make check`: clang and clang-format as well
	@CXX='$(CXX)' tools/deps.sh check
deps-container:  ## the same for `make container-test`: podman, buildah, runc and the wrappers
	@CXX='$(CXX)' tools/deps.sh container

clean:  ## take away build/
	rm -rf $(BUILD)

help:  ## this list
	@sed -n 's/^\([a-z-]*\)[a-z -]*:.*  ## \(.*\)/make \1|\2/p' $(firstword $(MAKEFILE_LIST)) packaging/packaging.mk | while IFS='|' read -r target what; do \
	    printf '%-20s %s\n' "$$target" "$$what"; done

# Installing, packages, other systems.
include packaging/packaging.mk
