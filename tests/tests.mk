# `make test`: the same sources in many configurations.
#
# build/test/CONFIGURATION/ holds `unit`, `internals`, `process`, `recovery`, the programs that these two start, and
# the link tests. A configuration is a `compiler.NAME`, of any .mk: this file is read last.

# Compiled many times over, so that compile time counts for more than speed.
TEST_CXXFLAGS ?= -O0
# Assertions without a try around each: an exception fails the case all the same, and a quarter less is compiled.
DOCTEST := -Itests -Itests/support -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS
TEST := $(COMMON) $(TEST_CXXFLAGS) $(DOCTEST)
SANITIZED := $(CLANGXX) $(COMMON) $(DOCTEST) -O0 -g1 $(HEADERS) $(SEPARATE) -fno-sanitize-recover=all
# The tests' own files: Clang takes half the time of GCC for them. The library and the programs that they test are CXX's.
TEST_CXX ?= $(or $(if $(filter-out file,$(origin CXX)),$(CXX)),$(shell command -v $(CLANGXX)),$(CXX))
cxx = $(if $(filter $(WITH_TEST_HPP),$(file)),$(TEST_CXX),$(CXX))
compiler.src             = $(cxx) $(TEST) -Isrc
# All by one compiler: `namespace ojs::detail`, which the generated headers do not have, is within v0_1_0 for GCC alone.
compiler.src-separate    = $(TEST_CXX) $(TEST) -Isrc $(SEPARATE)
compiler.header          = $(cxx) $(TEST) $(HEADERS)
compiler.header-separate = $(cxx) $(TEST) $(HEADERS) $(SEPARATE)
compiler.header-hidden   := $(CXX) $(TEST) $(HEADERS) -fPIC -fvisibility=hidden
# Separate where the form is not what is tested: that compiles in half the time.
compiler.fallback        := $(CLANGXX) $(TEST) $(HEADERS) $(SEPARATE) \
                            $(patsubst %,-DOJS_SHUTDOWN_USE_%=0,PROC PIDFD CLOSE_RANGE INOTIFY EPOLL)
# The macros are GCC's own. The check of vptr opens a pipe, and misreports where a test leaves no descriptor.
compiler.asan            := $(SANITIZED) -D__SANITIZE_ADDRESS__=1 -fsanitize=address,undefined -fno-sanitize=vptr
compiler.tsan            := $(SANITIZED) -D__SANITIZE_THREAD__=1 -fsanitize=thread
# The tests' own code, which is most of what is compiled.
tests.asan := -g0
tests.tsan := -g0
CONFIGURATIONS := $(patsubst compiler.%,%,$(filter compiler.%,$(.VARIABLES)))

# Layers with a folder of tests; that of process/ is child_process, as tests/process has the tests of whole processes.
LAYERS := child_process $(filter-out process,$(filter $(notdir $(wildcard src/ojs/*)),$(notdir $(wildcard tests/*))))
tests_of = $(filter-out %_internals_test.cpp,$(wildcard tests/$(1)/*.cpp tests/$(1)/*/*.cpp))
TESTS.unit := $(foreach layer,$(LAYERS),$(call tests_of,$(layer)))
# The separate form does not declare internals: their tests are compiled in the header-only form, in every
# configuration. So are files with such tests between others.
TESTS.internals := $(foreach layer,$(LAYERS),$(wildcard tests/$(layer)/*_internals_test.cpp)) \
    $(shell grep -l '^$(HASH)if .*!OJS_SHUTDOWN_SEPARATE' $(TESTS.unit))
# What a process that died leaves to the next; all other tests of whole processes. And the programs they start.
TESTS.recovery := $(patsubst %,tests/process/%.cpp,checkpoints controller probe spool spool_crash)
TESTS.process := $(filter-out %/harness.cpp $(TESTS.recovery),$(wildcard tests/process/*.cpp))
STARTED := $(filter-out hello_worker,$(PROGRAMS) $(TEST_PROGRAMS))
# Where examples/deploy/hold_signals.S knows the processor. Elsewhere the tests with it are skipped, and say so.
STATIC_WORKER := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m)),static_worker)
# What an empty image holds, as examples/deploy/controller.Dockerfile builds it. The worker's is smaller: `make dist`.
STATIC := -static -s -Wl,-e,hold_signals
# In one configuration for all: what judges and need not be judged, the worker of the image, and doctest, if it can
# be that of the others. ThreadSanitizer defines operator new and pthread_create itself.
ONCE := header-separate
ONCE.asan := broken_worker demo
ONCE.tsan := $(ONCE.asan) footprint thread_shortage
OWN_DOCTEST := asan tsan $(PORTS)
T := $(BUILD)/test

# An object: $* is CONFIGURATION/obj/FILE. The tests include test.hpp precompiled, which takes half off their compile
# time. -w: as the main file of a compilation a header is warned about for its `#pragma once`.
configuration = $(firstword $(subst /, ,$*))
file = $(patsubst $(configuration)/obj/%,%,$*)
WITH_TEST_HPP := layers/% $(patsubst %.cpp,%,$(TESTS.unit) $(wildcard tests/process/*.cpp))
test_hpp = $(if $(filter $(WITH_TEST_HPP),$(filter-out layers/internals,$(file))),$T/$(configuration)/support/test.hpp)
flags.layers/internals := -UOJS_SHUTDOWN_SEPARATE
flags.tests/model/weak_memory := -O2  # in a sixth of the time
flags.tests/link/other_version := -I$(BUILD)
$T/%.o: $$(call source_of,$$(file)) $$(or $$(addsuffix .gch,$$(test_hpp)),$T/$$(configuration)/flags)
	$(call compile,$(compiler.$(configuration)) $(if $(filter programs/%,$(file)),$(HEADERS)) \
	    $(if $(test_hpp),$(tests.$(configuration)) -include $(test_hpp)) $(flags.$(file)))
$T/%/support/test.hpp.gch: private cxx = $(TEST_CXX)
$T/%/support/test.hpp.gch: tests/support/test.hpp $T/%/flags
	$(call compile,$(compiler.$*) $(tests.$*) -w -x c++-header)
$T/%/flags: FORCE
	$(call remember,$(TEST_CXX) $(compiler.$*) $(tests.$*))

# The tests of a layer are one translation unit: compiling the library for each of ninety files takes the time of all
# else together. Where each holds the whole library, all layers are one; where the point is to compile little after a
# change, each file is one.
FILE_BY_FILE := src-separate
ALL_IN_ONE := src header
$(patsubst %,$(BUILD)/layers/%.cpp,$(LAYERS) unit internals process recovery): $(BUILD)/layers/%.cpp: \
    tests/tools/layer.sh FORCE
	$(call update,$< $(or $(TESTS.$*),$(call tests_of,$*)))
units = $(if $(filter-out $(ALL_IN_ONE),$(*D)),$(patsubst unit,$(LAYERS),$(*F)),$(*F))
files = $(if $(filter $(FILE_BY_FILE),$(*D)),$(patsubst %.cpp,%.o,$(TESTS.$(*F))),$(patsubst %,layers/%.o,$(units)))
started = $(if $(filter process recovery,$(*F)),$(addprefix $T/$(*D)/,$(STARTED) $(STATIC_WORKER)))
# Every program but `internals` links implementation.cpp. In the separate form it holds the definitions; else it is one
# more file that includes the header.
SUITE_PROGRAMS := $(addprefix $T/,$(call each,$(CONFIGURATIONS),$(SUITES) internals))
$(SUITE_PROGRAMS): $T/%: $$(addprefix $T/$$(*D)/obj/,$$(files) \
    $$(if $$(filter-out internals,$$(*F)),tests/link/implementation.o) $$(if $$(started),tests/process/harness.o)) \
    $T/$$(if $$(filter $(OWN_DOCTEST),$$(*D)),$$(*D),$(ONCE))/obj/tests/main.o | $$(started)
copied = $(if $(filter-out $(ONCE),$(*D)),$(filter shutdown-probe static_worker $(ONCE.$(*D)),$(*F)))
$(addprefix $T/,$(filter-out $(ONCE)/static_worker,$(call each,$(CONFIGURATIONS),$(STARTED) static_worker))): $T/%: \
    $$(if $$(copied),$T/$(ONCE)/$$(*F),$$(addprefix $T/$$(*D)/obj/,programs/$$(*F).o tests/link/implementation.o))
	$(if $(copied),@cp $< $@,$(call link,$(compiler.$(*D))))
$T/$(ONCE)/shutdown-probe: LDFLAGS += $(if $(STATIC_WORKER),-static)
$T/$(ONCE)/static_worker: examples/deploy/hold_signals.S \
    $(addprefix $T/$(ONCE)/obj/,programs/worker.o tests/link/implementation.o)
$T/$(ONCE)/static_worker: LDFLAGS += $(STATIC)

# Two files that must share one process-wide state: both header-only; one of each form; the second in a shared library,
# all with hidden visibility. And the header beside itself as another version, which must share no symbol with it. And no
# static local that a thread initializes: if that forks meanwhile, the child waits for it forever.
$T/header/two_units $T/src/two_units: $T/%/two_units: $T/%/obj/tests/link/first.o $T/%/obj/tests/link/second.o
$T/header/mixed: $T/header/obj/tests/link/first.o $(addprefix $T/header-separate/obj/tests/link/,second.o implementation.o)
$T/header/hidden: $T/header-hidden/obj/tests/link/first.o $T/header/libsecond.so
$T/header/libsecond.so: $T/header-hidden/obj/tests/link/second.o
$T/header/libsecond.so: LDFLAGS += -shared
$T/header-separate/versions: $(addprefix $T/header-separate/obj/tests/link/,versions.o other_version.o implementation.o)
	@for each in $(wordlist 1,2,$^); do nm --defined-only $$each | sed -n 's/.* [A-Zuv] //p' | sort -u; done | sort | \
	    uniq -d | { ! grep -E '3ojs|ojs_'; }
	@nm -C $(lastword $^) | { ! grep 'guard variable for ojs::'; }
	$(call link,$(compiler.header-separate))
$T/header-separate/obj/tests/link/other_version.o: $(BUILD)/other_version.hpp
$(BUILD)/other_version.hpp: extensions/ojs_memory.hpp ojs_shutdown.hpp
	@mkdir -p $(@D)
	@python3 -B tools/amalgamate.py --with memory --output $@
	@sed -i -e 's/\<v[0-9]*_[0-9]*_[0-9]*\>/v0_0_0/g' -e 's/^\(#define OJS_SHUTDOWN_VERSION \).*/\1"0.0.0"/' $@
# Real code of src/ojs/core and the word of a job, with the atomics of a model checker under it.
$T/src/weak_memory: $T/src/obj/tests/model/weak_memory.o
LINKED := header/two_units header/mixed header/hidden header/libsecond.so src/two_units src/weak_memory
$(SUITE_PROGRAMS) $T/$(ONCE)/static_worker $(addprefix $T/,$(LINKED)): $T/%:
	$(call link,$(compiler.$(*D)))
