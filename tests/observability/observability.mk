# `make observability-test`.

.PHONY: observability-test
OBSERVABILITY := $(patsubst tests/%_test.py,%,$(wildcard tests/observability/*_test.py))
observability-test: deps deps-observability  ## the status page in Chromium, dashboard and alert rules with Prometheus
	@$(call run_checks,$(OBSERVABILITY))
$(addprefix $(RESULTS)/,$(OBSERVABILITY)): $(RESULTS)/%: $(addprefix $(BUILD)/,launcher lifecycle_runner worker) FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/$*_test.py
