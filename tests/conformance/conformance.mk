# `make conformance`. Not part of `make check`: it wants the suites, and a runner that you have built.

.PHONY: conformance
RUNNER ?=
SUITE_DIR ?= ../ojs-conformance/suites
conformance: deps  ## dev_backend against the published suites: make conformance RUNNER='COMMAND' SUITE_DIR=DIR
	@$(MAKE) -s $(JOBS) $(BUILD)/dev_backend
	@tests/conformance/run.sh $(BUILD) '$(SUITE_DIR)' '$(RUNNER)'
