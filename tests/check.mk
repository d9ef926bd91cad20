# `make check`, `make fuzz`, `make duress`, `make account` and `make mutants`.

CHECK_PROGRAMS := $(call each,asan tsan,$(SUITES)) fallback/unit
CHECKS = format variants api $(WARNED) warnings/g++/optimised $(FUZZ) $(TEST_CHECKS) $(CHECK_PROGRAMS)

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wundef \
            -Wnull-dereference -Wzero-as-null-pointer-constant -Wextra-semi -Wswitch-enum -Werror
SYNTAX := $(COMMON) -fsyntax-only $(WARNINGS)
# $(warned.NAME): the command of warnings/NAME. It compiles the header-only form, then the separate form.
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
programs.g++/c++17     := $(patsubst %,$(BUILD)/programs/%.cpp,$(PROGRAMS) $(TEST_PROGRAMS))
programs.clang++/c++17 := $(programs.g++/c++17)
$(RESULTS)/warnings/g++/c++17 $(RESULTS)/warnings/clang++/c++17: $(programs.g++/c++17)
$(addprefix $(RESULTS)/,$(WARNED)): $(RESULTS)/warnings/%: FORCE
	@$(RUN) sh -c '$(warned.$*) tests/link/first.cpp && \
	    $(warned.$*) $(SEPARATE) tests/link/implementation.cpp $(programs.$*)'
# Some warnings (null dereference, uninitialised values, ignored results) come from the optimiser alone.
$(RESULTS)/warnings/g++/optimised: FORCE
	@$(RUN) g++ $(COMMON) $(HEADERS) $(WARNINGS) -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 $(SEPARATE) \
	    -c tests/link/implementation.cpp -o /dev/null

# Not the templates: the order of their includes is the order of the parts, which clang-format would sort.
HAND_WRITTEN := $(filter-out $(wildcard src/*.hpp),$(shell find src tests examples tools -name '*.[chi]pp' 2>/dev/null))
$(RESULTS)/format: FORCE
	@$(RUN) $(CLANG_FORMAT) --dry-run -Werror $(HAND_WRITTEN)
$(RESULTS)/variants: FORCE
	@$(RUN) tests/tools/variants.sh $(BUILD)/variants $(CXX) $(COMMON)

$(RESULTS)/api: FORCE
	@BUILD=$(BUILD) $(RUN) python3 -B tools/api_index.py --check

# ---- make fuzz -------------------------------------------------------------------------------------------------------

.PHONY: fuzz duress
# All targets are one program, which looks at the name it is started by.
FUZZ := $(patsubst tests/fuzz/corpus/%,fuzz/%,$(wildcard tests/fuzz/corpus/*))
# For all targets together.
SECONDS ?= 60
# Without inotify, of which the kernel takes milliseconds to take a watch back: more than all else of a run.
FUZZ_CXXFLAGS ?= -O1
compiler.fuzz := $(CLANGXX) $(COMMON) $(HEADERS) $(FUZZ_CXXFLAGS) -g1 -fsanitize=fuzzer -fsanitize=address -fsanitize=undefined \
                 -fno-sanitize-recover=all -DOJS_SHUTDOWN_USE_INOTIFY=0

fuzz: deps-check  ## libFuzzer on every target, 60 s in total; longer: make fuzz SECONDS=600
	@$(call run_checks,$(FUZZ))
	@grep -H '^stat::number_of_executed_units' $(patsubst %,$(BUILD)/%.log,$(FUZZ)) || true

$(BUILD)/fuzz/flags: FORCE
	$(call remember,$(compiler.fuzz))
$(BUILD)/fuzz/main.o: tests/fuzz/main.cpp $(BUILD)/fuzz/flags
	$(call compile,$(compiler.fuzz))
$(BUILD)/fuzz/main: $(BUILD)/fuzz/main.o
	$(call link,$(compiler.fuzz))
$(addprefix $(BUILD)/,$(FUZZ)): $(BUILD)/fuzz/main
	@ln -f $< $@
$(RESULTS)/fuzz/%: $(BUILD)/fuzz/% FORCE
	@$(RUN) tests/fuzz/run.sh $< $(SECONDS)

# ---- make duress -----------------------------------------------------------------------------------------------------

# Not part of `make check`: it takes an hour and more.
DURESS := $(foreach kind,busy hogs user quota freezes one-cpu bare,$(addprefix duress/$(kind)/,$(SUITES)))
RIVER_DURESS := $(addsuffix /river,$(addprefix duress/,busy hogs user one-cpu))
duress: deps deps-adapters  ## the tests, River's too, on a machine that is busy, slow, frozen at times, or bare; as an ordinary user
	@$(call run_checks,$(DURESS) $(RIVER_DURESS))
$(addprefix $(RESULTS)/,$(DURESS)): $(addprefix $(BUILD)/test/header-separate/,$(SUITES)) FORCE
	@OJS_TEST_BIN=$(abspath $(BUILD)/test/header-separate) $(RUN) tests/tools/duress.sh $(notdir $(@D)) \
	    $(abspath $(BUILD)/test/header-separate/$(@F)) --duration=true
$(addprefix $(RESULTS)/,$(RIVER_DURESS)): $(addprefix $(BUILD)/,river_worker river_probe_worker river_contract) FORCE
	@OJS_TEST_BUILD=$(abspath $(BUILD)) $(RUN) tests/tools/duress.sh $(notdir $(@D)) python3 -B tests/adapters/river_test.py

# ---- make account ----------------------------------------------------------------------------------------------------

.PHONY: account
SCALE ?= 1
account: deps deps-check deps-adapters  ## the runs behind docs/reliability.md, an hour; a trial: make account SCALE=0.01
	@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/test/header-separate/,$(SUITES)) $(BUILD)/test/src/weak_memory
	@python3 -B tests/account/account.py --scale $(SCALE)

# ---- make mutants ----------------------------------------------------------------------------------------------------

# Not part of `make check`: 200 mutants take up to an hour on two processors.
.PHONY: mutants
N ?= 200
ROOM ?= core worker net launcher
MUTATOR_VERSION := 1.14.1
MUTATOR := $(BUILD)/universalmutator-$(MUTATOR_VERSION)

mutants: deps deps-mutants $(MUTATOR)/bin/mutate  ## what no test would notice: make mutants N=200 SEED=1 ROOM=core
	@$(MUTATOR)/bin/python -B tests/mutants/mutants.py --count '$(N)' --folder $(BUILD)/mutants --compiler '$(CLANGXX)' \
	    $(if $(SEED),--seed '$(SEED)') $(ROOM)
# Without what only its command line needs.
$(MUTATOR)/bin/mutate:
	@echo "fetch   universalmutator $(MUTATOR_VERSION), to $(MUTATOR)"
	@rm -rf $(MUTATOR) && python3 -m venv $(MUTATOR)
	@$(MUTATOR)/bin/pip install -q --no-deps --disable-pip-version-check universalmutator==$(MUTATOR_VERSION)
