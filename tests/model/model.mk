# The model checker of `make test`: optimised, it takes a sixth of the time.
$(BUILD)/test/src/obj/tests/model/weak_memory.o: private compiler.src += -O2
