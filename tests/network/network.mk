# Jobs behind a network that fails: a short run in `make check`, 10,000 in `make account`.

$(RESULTS)/network: $(addprefix $(BUILD)/test/$(ONCE)/,test_worker dev_backend) FORCE
	@OJS_TEST_BIN=$(abspath $(BUILD)/test/$(ONCE)) $(RUN) python3 -B tests/network/network.py
CHECKS += network
