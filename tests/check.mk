# The lanes, and `make fuzz` and `make sim`, of which each lane has a run.

LINKED_TESTS = $(filter-out %.so,$(LINKED))
COMPILED = $(patsubst tests/compile/%.cpp,header/compile/%,$(wildcard tests/compile/*.cpp))
# All tests on the header: in the header-only form those of internals, as the rest is the same code in both. That src/ is
# the same code is what `amalgamation` proves; that it works as it is, two_units.
TEST_CHECKS = amalgamation tools header/internals $(call each,header-separate,$(SUITES) versions) $(LINKED_TESTS) $(COMPILED)
PUSH = format amalgamation texts header/internals header-separate/unit src/weak_memory sim/search $(COMPILED)
CHECKS = format api $(TEST_CHECKS) $(call each,asan tsan,unit internals) $(call each,warnings/g++ warnings/clang++,c++17) \
    $(ANALYSES) $(FUZZ) network sim/search sim/replay
# What `make ci` runs only if the change concerns it: $(part.NAME) by the names that changed.py prints.
part.queues = $(QUEUES)
part.adapters = $(ADAPTERS)
part.container := container
part.packaging := packaging recipes
CHANGED = $(shell python3 -B tests/tools/changed.py $(BASE))
BASE ?=
# What finds a fault seldom, and takes long.
NIGHTLY = $(sort $(CHECKS) $(foreach part,queues adapters container packaging,$(part.$(part))) $(KAFKA_CHAOS) variants fleet_sim \
    $(call each,asan tsan,process recovery) fallback/unit src/unit x86_64-linux-musl/unit $(WARNED) \
    $(addsuffix /portable,x86-linux-musl s390x-linux-gnu) $(addprefix warnings/g++/,optimised lto) \
    compiled/aarch64-macos compiled/x86_64-freebsd $(DEBIAN_CHECKS) subprojects $(call each,duress/busy duress/freezes,$(SUITES)))
RELEASE_CHECKS = $(PORTS:%=%/unit) $(addprefix compiled/,x86_64-macos aarch64-macos x86_64-freebsd) $(DURESS) \
    $(RIVER_DURESS) $(OBSERVABILITY) interop server packaging recipes

push: deps deps-format  ## two minutes before a push: format, generated files, unit tests, 10 s of the simulation
	$(call run_checks,$(PUSH))
check: deps-check  ## all tests, the sanitizers, warnings of g++ and clang++, analysis, 20 s of fuzzing and of the simulation
	$(call run_checks,$(CHECKS))
ci: deps-check $$(addprefix deps-,$$(filter-out packaging,$$(CHANGED)))  ## what CI runs: `make check`, and what the change since BASE concerns of queues, adapters, container, packaging
	$(call run_checks,$(CHECKS) $(foreach part,$(CHANGED),$(part.$(part))))
nightly: deps-check deps-container deps-debian deps-subprojects deps-adapters deps-queues deps-kafka deps-mutants  ## every part of ci, more configurations, an hour of fuzzing, simulation and mutants
	$(call run_checks,$(NIGHTLY))
	@$(MAKE) -s sim-proof
	@$(MAKE) -s mutants N=60
release: deps-check deps-adapters deps-observability deps-portability  ## every processor, every duress, the account and the measurements, hours
	$(call run_checks,$(RELEASE_CHECKS))
	@$(MAKE) -s account bench
# Unoptimised, as the programs are compiled for these tests alone. `make dist`, which the tests run too, is optimised.
push check ci: export CXXFLAGS := -O0
push check ci: export FUZZ_CXXFLAGS := -O0
ci: export PROCESSORS := $(shell uname -m)
push: export SIM_SECONDS := 10
check ci: export SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),20)
nightly: export SECONDS := 900
nightly: export SIM_SECONDS := 900
nightly: export FIRST := random

# ThreadSanitizer of GCC before 14 does not start where addresses are strongly randomised. A worker whose handler never
# returns exits with that thread still there; that is its task, not a leak.
run.tsan := env TSAN_OPTIONS=report_thread_leaks=0:die_after_fork=0 \
    $(shell setarch -R true 2>/dev/null && echo setarch -R)
# What takes a sanitizer a minute and shows it nothing new: the judge of the protocol and the demonstrations.
args.asan := --test-case-exclude='shutdown-probe:*,demo*fleet:*'
args.tsan := $(args.asan)
# --duration: after a crash, the last case named is the last one that came to its end.
$(RESULTS)/%: $(BUILD)/test/% FORCE
	@OJS_TEST_BIN=$(abspath $(<D)) $(RUN) $(run.$(*D)) $< --duration=true $(args.$(*D))
$(RESULTS)/header/compile/%: tests/compile/%.cpp FORCE
	@$(RUN) tests/compile/compile.sh $< $(CXX) $(COMMON) $(HEADERS)

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wundef \
            -Wnull-dereference -Wzero-as-null-pointer-constant -Wextra-semi -Wswitch-enum -Werror
SYNTAX := $(COMMON) -fsyntax-only $(WARNINGS)
# $(warned.NAME): the flags of warnings/COMPILER/NAME and warnings/NAME; of a standard, those of the headers.
warned.src         := -Isrc
warned.no-proc     := $(HEADERS) -DOJS_SHUTDOWN_USE_PROC=0
warned.no-pidfd    := $(HEADERS) -DOJS_SHUTDOWN_USE_PIDFD=0 -DOJS_SHUTDOWN_USE_CLOSE_RANGE=0
warned.no-inotify  := $(HEADERS) -DOJS_SHUTDOWN_USE_INOTIFY=0
WARNED := $(addprefix warnings/,$(call each,g++ clang++,c++17 c++20 c++2b src) no-proc no-pidfd no-inotify)
NEWER := c++17 c++20 c++23 c++26  # of the compilers of `make debian`
# The programs too, as they are built; by Clang at night.
$(RESULTS)/warnings/g++/c++17 $(RESULTS)/warnings/clang++/c++2b: \
    $(patsubst %,$(BUILD)/programs/%.cpp,$(PROGRAMS) $(TEST_PROGRAMS))
# The header-only form, then the separate form.
warn = $(if $(filter clang++/%,$*),$(CLANGXX),g++) $(SYNTAX) $(or $(warned.$(*F)),$(HEADERS) -std=$(*F))
$(RESULTS)/warnings/%: FORCE
	@$(RUN) sh -c '$(warn) tests/link/first.cpp && $(warn) $(SEPARATE) tests/link/implementation.cpp $(filter %.cpp,$^)'
# Some warnings (null dereference, uninitialised values, ignored results) come from the optimiser alone.
$(RESULTS)/warnings/g++/optimised: FORCE
	@$(RUN) g++ $(COMMON) $(HEADERS) $(WARNINGS) -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 $(SEPARATE) \
	    -c tests/link/implementation.cpp -o /dev/null
# As a program with link-time optimisation is built: g++ 12 then sees sizes across functions.
$(RESULTS)/warnings/g++/lto: FORCE
	@$(RUN) sh -c '$(foreach level,-O2 -O3,g++ $(COMMON) $(HEADERS) -Wall -Wextra -Werror -flto=auto $(level) \
	    examples/hello_worker.cpp -o $@ && )rm $@'

# Not the templates: the order of their includes is the order of the parts, which clang-format would sort.
HAND_WRITTEN = $(filter-out $(wildcard src/*.hpp),$(shell find src tests bench examples tools -name '*.[chi]pp' 2>/dev/null))
$(RESULTS)/format: FORCE
	@$(RUN) $(CLANG_FORMAT) --dry-run -Werror $(HAND_WRITTEN)
$(RESULTS)/variants: FORCE
	@$(RUN) tests/tools/variants.sh $(BUILD)/variants $(CXX) $(COMMON)
$(RESULTS)/api: FORCE
	@BUILD=$(BUILD) $(RUN) python3 -B tools/api_index.py --check
$(RESULTS)/amalgamation: FORCE
	@$(RUN) python3 tools/amalgamate.py --check
# Of the documents what needs no compiler.
$(RESULTS)/texts: FORCE
	@$(RUN) env PYTHONPATH=tests/tools python3 -B -m unittest test_budget test_changed test_clauses \
	    $(addprefix test_docs.,Names Sizes Tables Backend Configuration LogsAndMetrics)
$(RESULTS)/tools: FORCE
	@$(RUN) python3 -B -m unittest discover -s tests/tools
# Jobs behind a network that fails, then workers without the relay: short runs; `make account` has some of 10,000.
$(RESULTS)/network: $(addprefix $(BUILD)/test/header-separate/,test_worker dev_backend) FORCE
	@OJS_TEST_BIN=$(abspath $(<D)) $(RUN) sh -c 'for mode in "" workers; do \
	    python3 -B tests/network/network.py $$mode || exit; done'

# A script is tests/NAME_test.py, or tests/NAME/NAME_test.py.
RUN_SCRIPT = OJS_TEST_BUILD=$(BUILD) CXX='$(CXX)' $(RUN) python3 -B
$(RESULTS)/%: tests/%_test.py FORCE
	@$(RUN_SCRIPT) $<
$(RESULTS)/%: tests/$$*/$$*_test.py FORCE
	@$(RUN_SCRIPT) $<

# ---- make fuzz -------------------------------------------------------------------------------------------------------

# All targets are one program, which looks at the name it is started by.
FUZZ := $(patsubst tests/fuzz/corpus/%,fuzz/%,$(wildcard tests/fuzz/corpus/*))
# For all targets together.
SECONDS ?= 60
FUZZ_CXXFLAGS ?= -O1
# Without inotify, of which the kernel takes milliseconds to take a watch back: more than all else of a run.
compiler.fuzz := $(CLANGXX) $(COMMON) $(HEADERS) $(FUZZ_CXXFLAGS) -g1 -fsanitize=fuzzer,address,undefined \
                 -fno-sanitize-recover=all -DOJS_SHUTDOWN_USE_INOTIFY=0
fuzz: deps-check  ## libFuzzer on every target, 60 s in total; longer: make fuzz SECONDS=600
	$(call run_checks,$(FUZZ))
	@grep -H '^stat::number_of_executed_units' $(patsubst %,$(BUILD)/%.log,$(FUZZ)) || true
$(BUILD)/fuzz/main: LDLIBS += $(call where,rabbitmq,-lrabbitmq) $(call where,hiredis,-lhiredis)
$(BUILD)/fuzz/main: $(BUILD)/test/fuzz/obj/tests/fuzz/main.o
	$(call link,$(compiler.fuzz))
$(addprefix $(BUILD)/,$(FUZZ)): $(BUILD)/fuzz/main
	@ln -f $< $@
$(RESULTS)/fuzz/%: $(BUILD)/fuzz/% FORCE
	@$(RUN) tests/fuzz/run.sh $< $(SECONDS)

# ---- make sim --------------------------------------------------------------------------------------------------------

# Optimised, as a schedule is computed. What reads /proc or unwinds sees the one thread of the machine.
compiler.simulation := $(CXX) $(COMMON) -Isrc -Itests/sim -O1 -g1 -DOJS_SHUTDOWN_USE_PROC=0
SIM := $(BUILD)/sim/sim
sim: deps  ## the worker, simulated: make sim SECONDS=600, or one schedule again: make sim SEED=7 TRACE=1
	$(call build,sim/sim)
	@$(SIM) $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace) $(foreach limit,ITEMS CALLS FAULTS SWITCHES, \
	    $(if $($(limit)),--$(limit) $($(limit)))),--seconds $(SECONDS) --first $(or $(FIRST),random))
$(SIM): $(patsubst %.cpp,$(BUILD)/test/simulation/obj/%.o,$(wildcard tests/sim/*.cpp))
	$(call link,$(CXX))
# The same seeds each time but at night, so that a check that fails fails again.
SIM_SECONDS ?= 20
$(RESULTS)/sim/search: $(SIM) FORCE
	@$(RUN) $(SIM) --seconds $(SIM_SECONDS) --first $(or $(FIRST),1)
# Byte by byte.
$(RESULTS)/sim/replay: $(SIM) FORCE
	@$(RUN) sh -c 'for seed in 11 12 13 15 18; do \
	    $(SIM) --seed $$seed --trace >$(SIM).1 && $(SIM) --seed $$seed --trace >$(SIM).2 && \
	    test $$(wc -l <$(SIM).1) -gt 4 && cmp $(SIM).1 $(SIM).2 || exit 1; done'
