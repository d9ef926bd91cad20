# Models and measurements, also of what the tests notice. No check of `make ci` runs them.

fleet-sim: deps  ## ten thousand workers, simulated: the load on a backend when all restart, or when it returns
	$(call build,fleet_defaults)
	@python3 -B bench/fleet_sim/run.py --defaults $(BUILD)/fleet_defaults --svg $(BUILD)/fleet.svg
# It reads internals, which the separate form does not declare.
$(BUILD)/fleet_defaults: $(OBJ)/bench/fleet_sim/defaults.o
$(OBJ)/bench/fleet_sim/defaults.o: FORM :=

bench: deps  ## measurements, each with a baseline from the same run; one of them: make bench ONLY=spool
	$(call build,$(PROGRAMS) bench pickup)
	@CXX='$(CXX)' python3 -B bench/bench.py --build $(BUILD) $(ONLY)
peers:  ## workers on the Go and Rust SDKs, for the row "peers" of make bench: make peers GO_SDK=CLONE RUST_SDK=CLONE
	@bench/peers/build.sh $(BUILD)/peers "$(GO_SDK)" "$(RUST_SDK)"
$(BUILD)/bench: $(patsubst %.cpp,$(OBJ)/%.o,$(filter-out %/pickup.cpp,$(wildcard bench/*.cpp))) $(IMPLEMENTATION)
# With the queues whose libraries are installed.
$(BUILD)/pickup: bench/pickup.cpp ojs_shutdown.hpp $(wildcard extensions/*.hpp)
	$(LOWER) $(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(LIBPQ) $< -o $@ $(call where,rabbitmq,-lrabbitmq) \
	    $(call where,hiredis,-lhiredis) $(if $(LIBPQ),-lpq)

SCALE ?= 1
account: deps deps-check deps-adapters  ## the runs behind docs/evidence.md, two hours; a trial: make account SCALE=0.01
	$(call build,$(addprefix test/header-separate/,$(SUITES)) test/src/weak_memory)
	@python3 -B bench/account/account.py --scale $(SCALE)

$(RESULTS)/fleet_sim: bench/fleet_sim/fleet_sim_test.py $(BUILD)/fleet_defaults FORCE
	@$(RUN_SCRIPT) $<

sim-proof: deps  ## faults of the past, put back: does the simulation find each?
	@python3 -B bench/sim_proof.py --cxx $(CXX) $(if $(ONLY),--only '$(ONLY)')
# 200 mutants take up to an hour on two processors.
N ?= 200
LAYER ?= core stop loop worker net launcher
MUTATOR := $(BUILD)/universalmutator-1.14.1
mutants: deps deps-mutants $(MUTATOR)/bin/mutate  ## what no test would notice: make mutants N=200 SEED=1 LAYER=core
	@$(MUTATOR)/bin/python -B bench/mutants/mutants.py --count '$(N)' --folder $(BUILD)/mutants --compiler '$(CLANGXX)' \
	    $(if $(SEED),--seed '$(SEED)') $(LAYER)
# Without what only its command line needs.
$(MUTATOR)/bin/mutate:
	$(call fetch,$(MUTATOR),--no-deps universalmutator==1.14.1)
