# `make queues` and `make queues-test`: the transports and examples for brokers and other libraries, and their tests.

.PHONY: queues queues-test
ON_RABBITMQ := amqp_worker amqp_loop amqp_contract amqp_control amqp_tool
ON_HIREDIS := redis_streams_worker redis_streams_loop redis_streams_contract redis_streams_control
ON_RDKAFKA := kafka_loop kafka_mock kafka_control
ON_GRPC := grpc_drain grpc_client
ON_BOOST := asio_drain
QUEUE_PROGRAMS := $(ON_RABBITMQ) $(ON_HIREDIS) $(ON_RDKAFKA) $(ON_GRPC) $(ON_BOOST)

$(ON_RABBITMQ:%=$(BUILD)/%): LDLIBS += -lrabbitmq
$(ON_HIREDIS:%=$(BUILD)/%): LDLIBS += -lhiredis
$(ON_RDKAFKA:%=$(BUILD)/%): LDLIBS += -lrdkafka
$(ON_GRPC:%=$(BUILD)/%): LDLIBS += $(shell pkg-config --libs grpc++ 2>/dev/null)

$(OBJ)/queues/%.o: examples/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE))
$(OBJ)/queues/%.o: tests/queues/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) -Itests/support)
# Each extension's definitions are in an object of its own, since not every machine has all libraries.
$(BUILD)/amqp_worker $(BUILD)/amqp_contract: $(OBJ)/queues/implementation_amqp.o
$(BUILD)/redis_streams_worker $(BUILD)/redis_streams_contract: $(OBJ)/queues/implementation_redis_streams.o
$(addprefix $(BUILD)/,amqp_loop redis_streams_loop kafka_loop grpc_drain asio_drain): $(OBJ)/tests/link/implementation.o
$(addprefix $(BUILD)/,$(QUEUE_PROGRAMS)): $(BUILD)/%: $(OBJ)/queues/%.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))

# Needs no library, but C++20.
$(BUILD)/stop_token_test_clang: CXX := $(CLANGXX)
$(BUILD)/stop_token_test $(BUILD)/stop_token_test_clang: tests/queues/stop_token_test.cpp extensions/ojs_stop_token.hpp
	@mkdir -p $(@D)
	$(LOWER) $(CXX) $(COMMON) -std=c++20 $(CXXFLAGS) $(HEADERS) $< -o $@
