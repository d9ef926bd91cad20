# `make sim`, and its checks in `make check`.

# Optimised, as a schedule is computed. What reads /proc or unwinds sees the one thread of the machine.
compiler.simulation := $(CXX) $(COMMON) -Isrc -Itests/sim -O1 -g1 -DOJS_SHUTDOWN_USE_PROC=0 -DOJS_SHUTDOWN_USE_UNWIND=0
SIM := $(BUILD)/sim/sim
SIM_LIMITS := ITEMS CALLS FAULTS SWITCHES

.PHONY: sim sim-proof
sim: deps  ## the worker, simulated: make sim SECONDS=600, or one schedule again: make sim SEED=7 TRACE=1
	@$(MAKE) -s $(JOBS) $(SIM)
	@$(SIM) $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace) $(foreach limit,$(SIM_LIMITS), \
	    $(if $($(limit)),--$(limit) $($(limit)))),--seconds $(SECONDS) --first $(or $(FIRST),random))
sim-proof: deps  ## faults of the past, put back: does the simulation find each?
	@python3 -B tests/sim/past.py --cxx $(CXX) $(if $(ONLY),--only '$(ONLY)')

$(BUILD)/sim/flags: FORCE
	$(call remember,$(compiler.simulation))
$(BUILD)/sim/%.o: tests/sim/%.cpp $(BUILD)/sim/flags
	$(call compile,$(compiler.simulation))
$(SIM): $(patsubst tests/sim/%.cpp,$(BUILD)/sim/%.o,$(wildcard tests/sim/*.cpp))
	$(call link,$(CXX))

CHECKS += sim/search sim/replay
# The same seeds each time, so that a check that fails fails again.
$(RESULTS)/sim/search: $(SIM) FORCE
	@$(RUN) $(SIM) --seconds 20
# Byte by byte.
$(RESULTS)/sim/replay: $(SIM) FORCE
	@$(RUN) sh -c 'for seed in 11 12 13 15 17; do \
	    $(SIM) --seed $$seed --trace >$(SIM).1 && $(SIM) --seed $$seed --trace >$(SIM).2 && \
	    test $$(wc -l <$(SIM).1) -gt 4 && cmp $(SIM).1 $(SIM).2 || exit 1; done'
