# `make queues` and `make queues-test`: the transports and examples for brokers and other libraries, and their tests.

.PHONY: queues queues-test queues-table
ON_RABBITMQ := amqp_worker amqp_loop amqp_contract amqp_control amqp_tool
ON_HIREDIS := redis_streams_worker redis_streams_loop redis_streams_contract redis_streams_control
ON_RDKAFKA := kafka_loop kafka_mock kafka_control
ON_GRPC := grpc_drain grpc_client
ON_BOOST := asio_drain
# $(call where,HEADER,PROGRAMS): the programs, where their library's header is installed.
where = $(if $(shell echo '\#include <$(1)>' | $(CXX) -std=c++17 -E -x c++ - >/dev/null 2>&1 && echo yes),$(2))
QUEUE_PROGRAMS = $(call where,amqp.h,$(ON_RABBITMQ)) $(call where,hiredis/hiredis.h,$(ON_HIREDIS)) \
    $(call where,librdkafka/rdkafka.h,$(ON_RDKAFKA)) $(call where,grpcpp/grpcpp.h,$(ON_GRPC)) \
    $(call where,boost/beast.hpp,$(ON_BOOST))
ALL_QUEUE_PROGRAMS := $(ON_RABBITMQ) $(ON_HIREDIS) $(ON_RDKAFKA) $(ON_GRPC) $(ON_BOOST)

queues: deps  ## the examples for RabbitMQ, Redis, Kafka, gRPC and Asio whose libraries are installed, as build/NAME
	@$(MAKE) -s $(JOBS) $(addprefix $(BUILD)/,$(QUEUE_PROGRAMS))
	@echo "built:    $(QUEUE_PROGRAMS)"
	@echo "left out: $(filter-out $(QUEUE_PROGRAMS),$(ALL_QUEUE_PROGRAMS)); make deps-queues installs what they need"

# Each has a broker of its own, so that they run side by side. Where a library is missing its tests are left out.
QUEUES = $(addprefix queues/,stop_token \
    $(call where,amqp.h,Contract.test_rabbitmq_classic Contract.test_rabbitmq_quorum Chaos.test_amqp_worker Chaos.test_amqp_loop) \
    $(call where,hiredis/hiredis.h,Contract.test_redis Chaos.test_redis_streams_worker Chaos.test_redis_streams_loop) \
    $(call where,amqp.h,$(call where,hiredis/hiredis.h,warnings Refusals)) $(call where,librdkafka/rdkafka.h,kafka Chaos.test_kafka_loop) \
    $(call where,grpcpp/grpcpp.h,grpc) $(call where,boost/beast.hpp,asio))
queues-test: deps deps-queues  ## those, on private brokers: contracts, and an account of 10,000 messages over 20 stops each
	@$(call run_checks,$(QUEUES))
queues-table: deps deps-queues  ## the measured rows of docs/queues.md, the clients' own examples beside them: minutes
	@$(MAKE) -s $(JOBS) queues
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/queues/chaos.py
$(RESULTS)/queues/%: FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/queues/queues_test.py $*
$(addprefix $(RESULTS)/queues/,Contract.test_rabbitmq_classic Contract.test_rabbitmq_quorum): $(addprefix $(BUILD)/,amqp_contract amqp_tool)
$(RESULTS)/queues/Contract.test_redis: $(BUILD)/redis_streams_contract
$(RESULTS)/queues/Refusals: $(addprefix $(BUILD)/,amqp_worker amqp_tool redis_streams_worker)
$(addprefix $(RESULTS)/queues/Chaos.test_,amqp_worker amqp_loop redis_streams_worker redis_streams_loop kafka_loop): \
    $(RESULTS)/queues/Chaos.test_%: $(BUILD)/%
$(addprefix $(RESULTS)/queues/Chaos.test_,amqp_worker amqp_loop): $(BUILD)/amqp_tool
$(RESULTS)/queues/Chaos.test_kafka_loop: $(BUILD)/kafka_mock
$(RESULTS)/queues/stop_token: $(BUILD)/stop_token_test $(BUILD)/stop_token_test_clang FORCE
	@$(RUN) sh -c '$(BUILD)/stop_token_test && $(BUILD)/stop_token_test_clang'
$(RESULTS)/queues/kafka: $(BUILD)/kafka_loop $(BUILD)/kafka_mock FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/queues/kafka_test.py
$(RESULTS)/queues/grpc: $(BUILD)/grpc_drain $(BUILD)/grpc_client FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/queues/grpc_test.py
$(RESULTS)/queues/asio: $(BUILD)/asio_drain FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/queues/asio_test.py
# Both forms; the separate one without the libraries' headers.
WITH_QUEUES := -include ojs_amqp.hpp -include ojs_redis_streams.hpp -x c++ /dev/null
$(RESULTS)/queues/warnings: FORCE
	@$(RUN) sh -c 'g++ $(SYNTAX) $(HEADERS) $(WITH_QUEUES) && g++ $(SYNTAX) $(HEADERS) $(SEPARATE) $(WITH_QUEUES)'

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
$(addprefix $(BUILD)/,$(ALL_QUEUE_PROGRAMS)): $(BUILD)/%: $(OBJ)/queues/%.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))

# Needs no library, but C++20.
$(BUILD)/stop_token_test_clang: CXX := $(CLANGXX)
$(BUILD)/stop_token_test $(BUILD)/stop_token_test_clang: tests/queues/stop_token_test.cpp extensions/ojs_stop_token.hpp
	@mkdir -p $(@D)
	$(LOWER) $(CXX) $(COMMON) -std=c++20 $(CXXFLAGS) $(HEADERS) $< -o $@
