# `make adapters` and `make adapters-test`: the extensions that need another library, a worker for each, and their tests.

.PHONY: adapters adapters-test river-interop river-chaos river-bench
ON_OPENSSL := tls_worker https_client
ON_LIBPQ := river_worker river_probe_worker river_contract river_bench
# Where Debian and others have libpq's headers; elsewhere they are on the compiler's path.
LIBPQ := $(addprefix -isystem ,$(wildcard /usr/include/postgresql))
adapters: deps  ## build/tls_worker, over https://, and build/river_worker, on River's queue, where OpenSSL and libpq are installed
	@if echo '#include <openssl/ssl.h>' | $(CXX) -E -x c - >/dev/null 2>&1; then \
	    $(MAKE) -s $(JOBS) $(BUILD)/tls_worker; else echo "left out: tls_worker; apt-get install libssl-dev"; fi
	@if echo '#include <libpq-fe.h>' | $(CXX) $(LIBPQ) -E -x c - >/dev/null 2>&1; then \
	    $(MAKE) -s $(JOBS) $(BUILD)/river_worker; else echo "left out: river_worker; apt-get install libpq-dev"; fi

# A class of tests each has a server of its own, so that they run side by side.
ADAPTERS := $(addprefix adapters/,tls warnings $(addprefix river/,Work Notices Stops Crashes BadInput Contract Chaos))
adapters-test: deps deps-adapters  ## ojs_tls.hpp and ojs_river.hpp against openssl s_server, nginx and PostgreSQL
	@$(call run_checks,$(ADAPTERS))
$(RESULTS)/adapters/tls: $(ON_OPENSSL:%=$(BUILD)/%) $(BUILD)/dev_backend FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/adapters/tls_test.py
$(RESULTS)/adapters/river/%: $(addprefix $(BUILD)/,river_worker river_probe_worker river_contract) FORCE
	@OJS_TEST_BUILD=$(BUILD) $(RUN) python3 -B tests/adapters/river_test.py $*
# Both forms; the separate one without libpq's headers.
WITH_ADAPTERS := -include ojs_tls.hpp -include ojs_river.hpp -x c++ /dev/null
$(RESULTS)/adapters/warnings: FORCE
	@$(RUN) sh -c 'g++ $(SYNTAX) $(HEADERS) $(LIBPQ) $(WITH_ADAPTERS) && \
	    g++ $(SYNTAX) $(HEADERS) $(SEPARATE) $(WITH_ADAPTERS)'

# Not part of `make check`: they want Go, and once the network for River's own client; the last two take minutes.
river-interop: deps deps-adapters  ## ojs_river.hpp beside River's client in Go
	@$(MAKE) -s $(JOBS) $(BUILD)/river_worker $(BUILD)/river_probe_worker
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/adapters/river_interop_test.py
river-chaos: deps deps-adapters  ## 20,000 jobs while workers are killed and PostgreSQL restarts; fewer: make river-chaos JOBS_TO_RUN=N
	@$(MAKE) -s $(JOBS) $(BUILD)/river_probe_worker
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/adapters/river_chaos.py --jobs $(or $(JOBS_TO_RUN),20000)
river-bench: deps deps-adapters  ## jobs per second, compared with the same SQL in a bare loop and River's own worker
	@$(MAKE) -s $(JOBS) $(BUILD)/river_worker $(BUILD)/river_bench
	@OJS_TEST_BUILD=$(BUILD) python3 -B tests/adapters/river_bench.py

$(OBJ)/adapters/%.o: examples/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) $(LIBPQ))
$(OBJ)/adapters/river_contract.o: CXXFLAGS += -Itests/support
$(OBJ)/adapters/%.o: tests/adapters/%.cpp $(OBJ)/flags
	$(call compile,$(CXX) $(COMMON) $(CXXFLAGS) $(HEADERS) $(SEPARATE) $(LIBPQ))
$(ON_OPENSSL:%=$(BUILD)/%): LDLIBS += -lssl -lcrypto
$(ON_LIBPQ:%=$(BUILD)/%): LDLIBS += -lpq
# Each extension's definitions are in an object of its own, since not every machine has both libraries. river_contract and
# river_bench use internals and define OJS_SHUTDOWN_IMPLEMENTATION themselves.
$(ON_OPENSSL:%=$(BUILD)/%): $(OBJ)/adapters/implementation_tls.o
$(BUILD)/river_worker $(BUILD)/river_probe_worker: $(OBJ)/adapters/implementation_river.o
$(addprefix $(BUILD)/,$(ON_OPENSSL) $(ON_LIBPQ)): $(BUILD)/%: $(OBJ)/adapters/%.o
	$(call link,$(CXX) $(COMMON) $(CXXFLAGS))
