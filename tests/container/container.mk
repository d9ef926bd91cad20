# `make container-test`, and what it starts beside the static workers of packaging.mk.

.PHONY: container-test
container-test: deps deps-container  ## the worker in an image made FROM scratch, run by podman; the launcher under systemd; the controller as deployed
	@$(call run_checks,container)
$(RESULTS)/container: $(addprefix $(BUILD)/,dev_backend static_controller launcher lifecycle_runner) FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/container/container_test.py
$(BUILD)/static_%: $(addprefix $(OBJ)/,programs/%.o examples/deploy/hold_signals.o tests/link/implementation.o)
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS) $(STATIC))
