# `make bench`.

.PHONY: bench
bench: deps  ## measurements, each with a baseline from the same run
	@$(MAKE) -s $(JOBS) examples $(BUILD)/bench
	@CXX='$(CXX)' $(BUILD)/bench
$(BUILD)/bench: $(patsubst %.cpp,$(OBJ)/%.o,$(wildcard tests/bench/*.cpp)) $(OBJ)/tests/link/implementation.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
