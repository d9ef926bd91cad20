# `make fleet-sim`, and its check in `make test`.

.PHONY: fleet-sim
fleet-sim: deps  ## ten thousand workers, simulated: the load on a backend when all restart, or when it returns
	@$(MAKE) -s $(JOBS) $(BUILD)/fleet_defaults
	@python3 -B tests/fleet_sim/run.py --defaults $(BUILD)/fleet_defaults --svg $(BUILD)/fleet.svg
# It reads internals, which the separate form does not declare.
$(OBJ)/tests/fleet_sim/defaults.o: FORM :=
$(BUILD)/fleet_defaults: $(OBJ)/tests/fleet_sim/defaults.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))

TEST_CHECKS += fleet_sim
$(RESULTS)/fleet_sim: $(BUILD)/fleet_defaults FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/fleet_sim/fleet_sim_test.py
