# What `make check` leaves out: it takes an hour, or wants what not every machine has.

container-test: deps deps-container  ## the worker in an image made FROM scratch, run by podman; the launcher under systemd; the controller as deployed
	$(call run_checks,container)
$(RESULTS)/container: $(addprefix $(BUILD)/,dev_backend static_controller launcher lifecycle_runner) $$(STATIC_PROGRAMS)
$(BUILD)/static_controller: $(OBJ)/programs/controller.o examples/deploy/hold_signals.S $(IMPLEMENTATION)
$(BUILD)/static_controller: LDFLAGS += $(STATIC)

observability-test: deps deps-observability  ## the status page's flag, dashboard and alert rules with Prometheus
	$(call run_checks,$(OBSERVABILITY))
OBSERVABILITY := $(patsubst tests/%_test.py,%,$(wildcard tests/observability/*_test.py))
$(addprefix $(RESULTS)/,$(OBSERVABILITY)): $(addprefix $(BUILD)/,launcher lifecycle_runner worker)

# They want node, and the network once.
interop-test: deps grpc-bridge httplib-drain  ## the coordinator and the launcher against connect-node and gRPC clients
	$(call run_checks,interop server)
$(RESULTS)/interop: $(BUILD)/lifecycle_runner $(BUILD)/launcher FORCE
	@$(RUN) tests/interop/run.sh $(BUILD)
$(RESULTS)/server: $(BUILD)/dev_backend $(BUILD)/ojs_server FORCE
	@$(RUN) tests/interop/server.sh $(BUILD)
$(BUILD)/ojs_server: $(OBJ)/tests/interop/ojs_server.o $(IMPLEMENTATION)
$(OBJ)/tests/interop/ojs_server.o: FORM += -Itests/support
# Of the server, and what it does not do (tests/interop/ojs_server.cpp); empty: dev_backend, started for it.
URL ?=
LACKS ?=
server-test: deps  ## a running OJS server against the transport contract: make server-test URL=http://127.0.0.1:8080
	$(call build,dev_backend ojs_server)
	@tests/interop/server.sh $(BUILD) $(URL) $(LACKS)
# It wants the suites, and a runner that you have built.
RUNNER ?=
SUITE_DIR ?= ../ojs-conformance/suites
conformance: deps  ## dev_backend against the published suites: make conformance RUNNER='COMMAND' SUITE_DIR=DIR
	$(call build,dev_backend)
	@tests/conformance/run.sh $(BUILD) '$(SUITE_DIR)' '$(RUNNER)'

# ---- an hour and more ------------------------------------------------------------------------------------------------

DURESS := $(foreach kind,busy hogs user quota freezes one-cpu bare,$(addprefix duress/$(kind)/,$(SUITES)))
RIVER_DURESS := $(addsuffix /river,$(addprefix duress/,busy hogs user one-cpu))
duress: deps deps-adapters  ## the tests, River's too, on a machine that is busy, slow, frozen at times, or bare; as an ordinary user
	$(call run_checks,$(DURESS) $(RIVER_DURESS))
UNDER_DURESS := $(abspath $(BUILD)/test/header-separate)
$(addprefix $(RESULTS)/,$(DURESS)): $(addprefix $(BUILD)/test/header-separate/,$(SUITES)) FORCE
	@OJS_TEST_BIN=$(UNDER_DURESS) $(RUN) tests/tools/duress.sh $(notdir $(@D)) $(UNDER_DURESS)/$(@F) --duration=true
$(addprefix $(RESULTS)/,$(RIVER_DURESS)): $(addprefix $(BUILD)/,river_worker river_probe_worker river_contract) FORCE
	@OJS_TEST_BUILD=$(abspath $(BUILD)) $(RUN) tests/tools/duress.sh $(notdir $(@D)) python3 -B tests/adapters/river_test.py
