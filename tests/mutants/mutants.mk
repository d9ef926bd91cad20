# `make mutants`. Not part of `make check`: 200 mutants take up to an hour on two processors.

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
