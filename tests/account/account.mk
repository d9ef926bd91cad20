# `make account`.

.PHONY: account
account: deps deps-check deps-adapters  ## the runs behind docs/reliability.md, an hour; ARGUMENTS='--scale 0.01' is a trial
	@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/test/header-separate/,$(SUITES)) $(BUILD)/test/src/weak_memory
	@python3 -B tests/account/account.py $(ARGUMENTS)
