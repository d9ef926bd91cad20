# `make test`: the same sources in many configurations.
#
# build/test/CONFIGURATION/ holds `unit`, `process` and `recovery`, the programs that the latter two start, and the link
# tests. In the pattern rules, % is the configuration.

# The tests are compiled many times over, so that compile time counts for more than speed.
TEST_CXXFLAGS ?= -O0
# Assertions without a try around each: an exception fails the case all the same, and a quarter less is compiled.
# And picojson trusts the locale to have a decimal point, which shows where the library does not see to that.
DOCTEST := -Itests -Itests/support -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS -DPICOJSON_USE_LOCALE=0
TEST := $(COMMON) $(TEST_CXXFLAGS) $(DOCTEST)
SANITIZED := $(CLANGXX) $(COMMON) $(DOCTEST) -O0 -g1 $(HEADERS) $(SEPARATE) -fno-sanitize-recover=all
compiler.src             := $(CXX) $(TEST) -Isrc
compiler.src-separate    := $(CXX) $(TEST) -Isrc $(SEPARATE)
compiler.header          := $(CXX) $(TEST) $(HEADERS)
compiler.header-separate := $(CXX) $(TEST) $(HEADERS) $(SEPARATE)
compiler.header-hidden   := $(CXX) $(TEST) $(HEADERS) -fPIC -fvisibility=hidden
# Separate where the form is not what is tested: that compiles in half the time. Clang compiles what need not be GCC, in
# half the time again, so that no configuration is for it alone.
compiler.fallback        := $(CLANGXX) $(TEST) $(HEADERS) $(SEPARATE) \
                            $(patsubst %,-DOJS_SHUTDOWN_USE_%=0,EVENTFD PROC UNWIND PIDFD CLOSE_RANGE INOTIFY EPOLL)
# Unoptimised, which compiles fastest. The macros are GCC's own. The check of vptr opens a pipe, and misreports where a test
# leaves no descriptor.
compiler.asan            := $(SANITIZED) -D__SANITIZE_ADDRESS__=1 -fsanitize=address -fsanitize=undefined -fno-sanitize=vptr
compiler.tsan            := $(SANITIZED) -D__SANITIZE_THREAD__=1 -fsanitize=thread
# Besides, for the tests' own code, which is most of what is compiled.
tests.asan := -g0
tests.tsan := -g0
CONFIGURATIONS := $(patsubst compiler.%,%,$(filter compiler.%,$(.VARIABLES)))

# Where SQLite is not installed, dev_backend is built without --store.
$(BUILD)/dev_backend $(CONFIGURATIONS:%=$(BUILD)/test/%/dev_backend): \
    LDLIBS += $(shell echo '\#include <sqlite3.h>' | $(CXX) -E -x c - >/dev/null 2>&1 && echo -lsqlite3)

# Those with a folder of tests; that of process/ is child_process, as tests/process has the tests of whole processes.
ROOMS := child_process $(filter-out process,$(filter $(notdir $(wildcard src/ojs/*)),$(notdir $(wildcard tests/*))))
$(foreach room,$(ROOMS),$(eval TESTS.$(room) := $(wildcard tests/$(room)/*.cpp tests/$(room)/*/*.cpp)))
TESTS.rooms := $(foreach room,$(ROOMS),$(TESTS.$(room)))
# Those that use internals, which the separate form does not declare.
TESTS.internals := $(shell grep -l '^\#if !OJS_SHUTDOWN_SEPARATE' $(TESTS.rooms))
# What a process that died leaves to the next; all other tests of whole processes. About as long each, side by side.
TESTS.recovery := $(patsubst %,tests/process/%.cpp,checkpoints controller probe spool spool_crash)
TESTS.process := $(filter-out %/harness.cpp $(TESTS.recovery),$(wildcard tests/process/*.cpp))
WITH_TEST_HPP := $(TESTS.rooms) $(TESTS.process) $(TESTS.recovery) tests/process/harness.cpp
# What takes longest to build and to run stands first: what begins last must not go on alone.
SUITES := process recovery unit
# The programs they start.
STARTED := $(filter-out hello_worker,$(PROGRAMS) $(TEST_PROGRAMS))
# Where examples/deploy/hold_signals.S knows the processor. Elsewhere the tests with it are skipped, and say so.
STATIC_WORKER := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m)),static_worker)
# What an empty image holds, as examples/deploy/controller.Dockerfile builds it. The worker's is smaller: `make dist`.
STATIC := -static -s -Wl,-e,hold_signals
# In one configuration for all: what judges and need not be judged, the worker of the image, and doctest itself.
ONCE := header-separate
ONCE.asan := broken_worker demo unscheduled_log
# The others define operator new or pthread_create, as ThreadSanitizer does.
ONCE.tsan := $(ONCE.asan) counting_worker hung_file_worker threadless_worker out_of_memory
# Whose doctest cannot be that of the others.
OWN_DOCTEST := asan tsan

T := $(BUILD)/test/%
O := $(BUILD)/test/%/obj
$T/shutdown-probe: $(BUILD)/test/$(ONCE)/shutdown-probe
	@cp $< $@
$(BUILD)/test/$(ONCE)/shutdown-probe: LDFLAGS += $(if $(STATIC_WORKER),-static)
$T/static_worker: $(BUILD)/test/$(ONCE)/static_worker
	@cp $< $@
$(BUILD)/test/$(ONCE)/static_worker: $(addprefix $(BUILD)/test/$(ONCE)/obj/, \
    programs/worker.o examples/deploy/hold_signals.o tests/link/implementation.o)
	$(call link,$(compiler.$(ONCE)) $(STATIC))
$(BUILD)/test/$(ONCE)/obj/%.o: %.S
	$(call compile,$(compiler.$(ONCE)))

# Real code of src/ojs/core and the word of a job, with the atomics of a model checker under it.
$T/weak_memory: $O/tests/model/weak_memory.o
	$(call link,$(compiler.$*))

# The tests include test.hpp precompiled, which takes about half off their compile time. -w: as the main file of a
# compilation a header is warned about for its `#pragma once`.
$T/support/test.hpp.gch: tests/support/test.hpp $T/flags
	$(call compile,$(compiler.$*) $(tests.$*) -w -x c++-header)
$T/flags: FORCE
	$(call remember,$(compiler.$*) $(tests.$*))

# The tests of a room are one translation unit: compiling the library anew for each of ninety files takes the time of all
# else together. Where each holds the whole library, all rooms are one; where the point is to compile little after a
# change, each file is one.
FILE_BY_FILE := src-separate
ALL_IN_ONE := src header
# $(call test_objects,CONFIGURATION,ROOM): `rooms` are all of them.
test_objects = $(addprefix $(BUILD)/test/$(1)/obj/,$(if $(filter $(FILE_BY_FILE),$(1)), \
                   $(patsubst %.cpp,%.o,$(TESTS.$(2))),$(patsubst %,rooms/%.o, \
                   $(if $(filter-out $(ALL_IN_ONE),$(1)),$(patsubst rooms,$(ROOMS),$(2)),$(2)))))
$(patsubst %,$(BUILD)/rooms/%.cpp,$(ROOMS) rooms internals process recovery): $(BUILD)/rooms/%.cpp: tests/tools/room.sh FORCE
	$(call update,$< $(TESTS.$*))

# What has two stems, the configuration and the file, is a template: $(1) is the configuration, $(2) its folder. Every
# program links implementation.cpp. In the separate form it holds the definitions; else it is one more file that includes
# the header.
define configuration_rules
$(2)/obj/%.o: %.cpp $(2)/flags
	$$(call compile,$$(compiler.$(1)))
$(2)/obj/programs/%.o: $(BUILD)/programs/%.cpp $(2)/flags
	$$(call compile,$$(compiler.$(1)) $(HEADERS))
$(patsubst %.cpp,$(2)/obj/%.o,$(WITH_TEST_HPP)): $(2)/obj/%.o: %.cpp $(2)/support/test.hpp.gch
	$$(call compile,$$(compiler.$(1)) $$(tests.$(1)) -include $(2)/support/test.hpp)
$(2)/obj/rooms/%.o: $(BUILD)/rooms/%.cpp $(2)/support/test.hpp.gch
	$$(call compile,$$(compiler.$(1)) $$(tests.$(1)) -include $(2)/support/test.hpp)

$(2)/unit: $(call test_objects,$(1),rooms)
$(2)/internals: $(2)/obj/rooms/internals.o
$(2)/process: $(call test_objects,$(1),process)
$(2)/recovery: $(call test_objects,$(1),recovery)
$(2)/process $(2)/recovery: $(2)/obj/tests/process/harness.o | $(addprefix $(2)/,$(STARTED) $(STATIC_WORKER))
$(addprefix $(2)/,$(SUITES) internals): $(2)/obj/tests/link/implementation.o \
    $(BUILD)/test/$(if $(filter $(OWN_DOCTEST),$(1)),$(1),$(ONCE))/obj/tests/main.o
	$$(call link,$$(compiler.$(1)))
$(addprefix $(2)/,$(if $(filter $(ONCE),$(1)),$(STARTED),$(filter-out shutdown-probe $(ONCE.$(1)),$(STARTED)))): \
$(2)/%: $(2)/obj/programs/%.o $(2)/obj/tests/link/implementation.o
	$$(call link,$$(compiler.$(1)))
$(addprefix $(2)/,$(ONCE.$(1))): $(2)/%: $(BUILD)/test/$(ONCE)/%
	@cp $$< $$@
endef
$(foreach configuration,$(CONFIGURATIONS),$(eval \
    $(call configuration_rules,$(configuration),$(BUILD)/test/$(configuration))))

# $(call each,CONFIGURATIONS,NAMES): every pair, as CONFIGURATION/NAME.
each = $(foreach configuration,$(1),$(addprefix $(configuration)/,$(2)))
# All tests on the header: in the header-only form those of internals, as the rest is the same code in both; `make check`
# has the rest too. That src/ is the same code is what `amalgamation` proves; that it works as it is, two_units.
TESTED := header/internals $(call each,header-separate,$(SUITES) versions) $(call each,header,two_units mixed hidden) \
          src/two_units src/weak_memory
TEST_CHECKS := amalgamation tools $(TESTED) $(patsubst tests/compile/%.cpp,header/compile/%,$(wildcard tests/compile/*.cpp))

# ThreadSanitizer of GCC before 14 does not start where addresses are strongly randomised. A worker whose handler never
# returns exits with that thread still there; that is its task, not a leak.
run.tsan := env TSAN_OPTIONS=report_thread_leaks=0:die_after_fork=0 $(shell setarch -R true 2>/dev/null && echo setarch -R)
# What takes a sanitizer a minute and shows it nothing new: the judge of the protocol and the demonstrations.
args.asan := --test-case-exclude='shutdown-probe:*,demo*fleet:*'
args.tsan := $(args.asan)
# --duration: after a crash, the last case named is the last one that came to its end.
$(RESULTS)/%: $(BUILD)/test/% FORCE
	@OJS_TEST_BIN=$(abspath $(BUILD)/test/$(*D)) $(RUN) $(run.$(*D)) $< --duration=true $(args.$(*D))
$(RESULTS)/header/compile/%: tests/compile/%.cpp FORCE
	@$(RUN) tests/compile/compile.sh $< $(CXX) $(COMMON) $(HEADERS)
$(RESULTS)/amalgamation: FORCE
	@$(RUN) python3 tools/amalgamate.py --check
$(RESULTS)/tools: FORCE
	@$(RUN) python3 -B -m unittest discover -s tests/tools
