# `make bench`.

.PHONY: bench
bench: deps  ## measurements, each with a baseline from the same run; one of them: make bench ONLY=spool
	@$(MAKE) -s $(JOBS) examples $(BUILD)/bench
	@CXX='$(CXX)' python3 -B tests/bench/bench.py --build $(BUILD) $(ONLY)
$(BUILD)/bench: $(patsubst %.cpp,$(OBJ)/%.o,$(wildcard tests/bench/*.cpp)) $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
