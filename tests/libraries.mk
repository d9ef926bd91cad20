# `make adapters`, `make queues`: the extensions and examples that need another library, and their tests.

# $(on.LIBRARY): its programs, of examples/, tests/ and bench/. $(header.LIBRARY): by which it is found.
on.openssl := tls_worker https_client
header.openssl := openssl/ssl.h
on.libpq := river_worker river_probe_worker river_contract river_bench
header.libpq := libpq-fe.h
on.rabbitmq := amqp_worker amqp_loop amqp_contract amqp_tool
header.rabbitmq := amqp.h
on.hiredis := redis_streams_worker redis_streams_loop redis_streams_contract
header.hiredis := hiredis/hiredis.h
on.nats := nats_loop
header.nats := nats/nats.h
on.rdkafka := kafka_loop
header.rdkafka := librdkafka/rdkafka.h
on.grpc := grpc_drain grpc_client
header.grpc := grpcpp/grpcpp.h
on.boost := asio_drain
header.boost := boost/beast.hpp
on.httplib := httplib_drain
header.httplib := httplib.h
LIBRARIES := $(patsubst on.%,%,$(filter on.%,$(.VARIABLES)))
LIBRARY_PROGRAMS := $(foreach library,$(LIBRARIES),$(on.$(library)))
# Where Debian and others have libpq's headers; elsewhere they are on the compiler's path.
LIBPQ := $(addprefix -isystem ,$(wildcard /usr/include/postgresql))
# $(call where,LIBRARY,WORDS): the words, where the library is installed.
where = $(if $(shell echo '$(HASH)include <$(header.$(1))>' | \
    $(CXX) -std=c++17 $(LIBPQ) -E -x c++ - >/dev/null 2>&1 && echo yes),$(2))
# $(call build_found,LIBRARIES,PROGRAMS): those programs whose library is installed.
define build_found
	$(call build,obj/flags $(foreach library,$(1),$(call where,$(library),$(filter $(2),$(on.$(library))))))
	@$(foreach library,$(1),echo "$(or $(call where,$(library),built),left out) \
	    $(filter $(2),$(on.$(library))) ($(header.$(library)))";)
endef

adapters: deps  ## build/tls_worker, over https://, and build/river_worker, on River's queue, where OpenSSL and libpq are installed
	$(call build_found,openssl libpq,tls_worker river_worker)
queues: deps  ## the examples for RabbitMQ, Redis, NATS, Kafka, gRPC and Asio whose libraries are installed, as build/NAME
	$(call build_found,rabbitmq hiredis nats rdkafka grpc boost,%)
httplib-drain: deps  ## build/httplib_drain, a draining cpp-httplib server, if cpp-httplib is installed
	$(call build_found,httplib,%)

$(on.openssl:%=$(BUILD)/%): LDLIBS += -lssl -lcrypto
$(on.libpq:%=$(BUILD)/%): LDLIBS += -lpq
$(on.rabbitmq:%=$(BUILD)/%): LDLIBS += -lrabbitmq
$(on.hiredis:%=$(BUILD)/%): LDLIBS += -lhiredis
$(on.nats:%=$(BUILD)/%): LDLIBS += -lnats
$(on.rdkafka:%=$(BUILD)/%): LDLIBS += -lrdkafka
$(on.grpc:%=$(BUILD)/%): LDLIBS += $(shell pkg-config --libs grpc++ 2>/dev/null)
$(on.httplib:%=$(BUILD)/%): LDLIBS += $(shell pkg-config --libs cpp-httplib 2>/dev/null)
$(addprefix $(OBJ)/,examples/%.o tests/adapters/%.o tests/queues/%.o bench/river/%.o): FORM += $(LIBPQ) -Itests/support
$(OBJ)/examples/httplib_drain/%.o: FORM += $(shell pkg-config --cflags cpp-httplib 2>/dev/null)
# Each extension's definitions are in an object of its own, since not every machine has all libraries. river_contract and
# river_bench use internals and define OJS_SHUTDOWN_IMPLEMENTATION themselves.
main = $(patsubst %.cpp,%.o,$(wildcard examples/$*.cpp examples/$*/*.cpp $(foreach folder,tests/adapters tests/queues bench/river,\
    $(folder)/$*.cpp)))
$(LIBRARY_PROGRAMS:%=$(BUILD)/%): $(BUILD)/%: $$(addprefix $(OBJ)/,$$(main))
$(on.openssl:%=$(BUILD)/%): $(OBJ)/tests/adapters/implementation_tls.o
$(BUILD)/river_worker $(BUILD)/river_probe_worker: $(OBJ)/tests/adapters/implementation_river.o
$(BUILD)/amqp_worker $(BUILD)/amqp_contract: $(OBJ)/tests/queues/implementation_amqp.o
$(BUILD)/redis_streams_worker $(BUILD)/redis_streams_contract: $(OBJ)/tests/queues/implementation_redis_streams.o
$(addprefix $(BUILD)/,amqp_loop redis_streams_loop nats_loop kafka_loop grpc_drain asio_drain httplib_drain): $(IMPLEMENTATION)

# ---- adapters --------------------------------------------------------------------------------------------------------

# A class of tests each has a server of its own, so that they run side by side.
ADAPTERS := $(addprefix adapters/,tls warnings $(addprefix river/,Work Notices Stops Crashes BadInput Contract Chaos))
adapters-test: deps deps-adapters  ## ojs_tls.hpp and ojs_river.hpp against openssl s_server and PostgreSQL
	$(call run_checks,$(ADAPTERS))
$(RESULTS)/adapters/tls: $(addprefix $(BUILD)/,$(on.openssl) dev_backend)
$(RESULTS)/adapters/river/%: tests/adapters/river_test.py \
    $(addprefix $(BUILD)/,river_worker river_probe_worker river_contract) FORCE
	@$(RUN_SCRIPT) $< $*

# Not part of `make check`: they take minutes.
river-chaos: deps deps-adapters  ## 20,000 jobs while workers are killed and PostgreSQL restarts; fewer: make river-chaos JOBS_TO_RUN=N
	$(call build,river_probe_worker)
	@OJS_TEST_BUILD=$(BUILD) OJS_TEST_MESSAGES=$(or $(JOBS_TO_RUN),20000) OJS_TEST_STOPS=150 \
	    python3 -B tests/adapters/river_test.py Chaos
river-bench: deps deps-adapters  ## jobs per second, compared with the same SQL in a bare loop
	$(call build,river_worker river_bench)
	@OJS_TEST_BUILD=$(BUILD) python3 -B bench/river/river_bench.py

# ---- queues ----------------------------------------------------------------------------------------------------------

# Those of the account; empty: a fifth of the messages, and a stop of each kind.
MESSAGES ?=
STOPS ?=
KAFKA := Loops.test_kafka_commits_no_offset_past_an_interrupted_message
# Each has a broker of its own, so that they run side by side. Where a library is missing its tests are left out.
QUEUES = $(addprefix queues/,stop_token \
    $(call where,rabbitmq,$(addprefix Contract.test_contract_passes_on_rabbitmq_,classic quorum)) \
    $(call where,rabbitmq,$(addprefix Chaos.test_amqp_,worker loop)) \
    $(call where,hiredis,Contract.test_contract_passes_on_redis Chaos.test_redis_streams_worker Chaos.test_redis_streams_loop) \
    $(call where,nats,Loops.test_nats_extends_the_ack_wait Chaos.test_nats_loop) \
    $(call where,rabbitmq,Refusals $(call where,hiredis,warnings)) $(call where,rdkafka,$(KAFKA)) \
    $(call where,grpc,GrpcDrain) $(call where,boost,AsioDrain))
# Needs Kafka by Maven.
KAFKA_CHAOS = $(call where,rdkafka,$(addprefix queues/,Loops.test_kafka_cancels_messages_of_a_revoked_partition Chaos.test_kafka_loop))
needs.Loops.test_kafka_cancels_messages_of_a_revoked_partition := kafka_loop
queues-test: deps deps-queues  ## those, on private brokers: contracts, and an account of every message over stops of each kind
	$(call run_checks,$(QUEUES) $(KAFKA_CHAOS))
needs.Contract.test_contract_passes_on_rabbitmq_classic := amqp_contract amqp_tool
needs.Contract.test_contract_passes_on_rabbitmq_quorum := amqp_contract amqp_tool
needs.Contract.test_contract_passes_on_redis := redis_streams_contract
needs.Refusals := amqp_worker amqp_tool
needs.Chaos.test_amqp_worker := amqp_worker amqp_tool
needs.Chaos.test_amqp_loop := amqp_loop amqp_tool
needs.Chaos.test_redis_streams_worker := redis_streams_worker
needs.Chaos.test_redis_streams_loop := redis_streams_loop
needs.Chaos.test_nats_loop := nats_loop
needs.Loops.test_nats_extends_the_ack_wait := nats_loop
needs.Chaos.test_kafka_loop := kafka_loop
needs.$(KAFKA) := kafka_loop
needs.GrpcDrain := $(on.grpc)
needs.AsioDrain := $(on.boost)
$(RESULTS)/queues/%: tests/queues/queues_test.py $$(addprefix $(BUILD)/,$$(needs.$$*)) FORCE
	@OJS_TEST_MESSAGES=$(MESSAGES) OJS_TEST_STOPS=$(STOPS) $(RUN_SCRIPT) $< $*
# Both forms; the separate one without the libraries' headers.
with.adapters := -include ojs_tls.hpp -include ojs_river.hpp -x c++ /dev/null
with.queues := -include ojs_amqp.hpp -include ojs_redis_streams.hpp -x c++ /dev/null
$(RESULTS)/adapters/warnings $(RESULTS)/queues/warnings: $(RESULTS)/%/warnings: FORCE
	@$(RUN) sh -c 'g++ $(SYNTAX) $(HEADERS) $(LIBPQ) $(with.$*) && g++ $(SYNTAX) $(HEADERS) $(SEPARATE) $(with.$*)'
# Needs no library, but C++20.
$(RESULTS)/queues/stop_token: $(BUILD)/stop_token_test $(BUILD)/stop_token_test_clang FORCE
	@$(RUN) sh -c '$(BUILD)/stop_token_test && $(BUILD)/stop_token_test_clang'
$(BUILD)/stop_token_test_clang: CXX := $(CLANGXX)
$(BUILD)/stop_token_test $(BUILD)/stop_token_test_clang: tests/queues/stop_token_test.cpp extensions/ojs_stop_token.hpp
	$(call link,$(CXX) $(COMMON) -std=c++20 $(CXXFLAGS) $(HEADERS) $<)

# ---- gRPC ------------------------------------------------------------------------------------------------------------

GRPC := grpc++ protobuf
CODE := $(BUILD)/grpc
grpc-bridge: deps  ## build/grpc_bridge, which serves a coordinator over gRPC, where libgrpc++ is installed
	@if pkg-config --exists $(GRPC) && command -v protoc grpc_cpp_plugin >/dev/null; then \
	    $(MAKE) -s $(BUILD)/grpc_bridge; else \
	    echo "left out: grpc_bridge; apt-get install libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc pkg-config"; fi
# Both files at once: a pattern with two targets.
$(CODE)/%.pb.cc $(CODE)/%.grpc.pb.cc: examples/proto/%.proto
	@mkdir -p $(@D)
	@protoc -I $(<D) --cpp_out=$(@D) --grpc_out=$(@D) --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) $<
$(OBJ)/grpc/%.o: $(CODE)/%.cc $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) -I$(CODE) $$(pkg-config --cflags $(GRPC)))
$(OBJ)/examples/grpc_bridge/bridge.o: FORM += -isystem $(CODE) $(shell pkg-config --cflags $(GRPC) 2>/dev/null)
$(OBJ)/examples/grpc_bridge/bridge.o: $(CODE)/lifecycle.pb.cc
$(BUILD)/grpc_bridge: LDLIBS += $(shell pkg-config --libs $(GRPC) 2>/dev/null)
$(BUILD)/grpc_bridge: $(IMPLEMENTATION) \
    $(addprefix $(OBJ)/,examples/grpc_bridge/bridge.o grpc/lifecycle.pb.o grpc/lifecycle.grpc.pb.o)
OTHER_PROGRAMS = $(LIBRARY_PROGRAMS) grpc_bridge ojs_server bench fleet_defaults static_controller
