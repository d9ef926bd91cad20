# Other processors, other C libraries, other systems: `make portability`.
#
# The compiler is zig's clang with its own libc++ and musl, a package of pip's: the one cross compiler for all of these
# that is one download. It stays in build/; what it compiles of its own libraries is kept in its cache, for all trees.
# Not 0.16 and later: their malloc() is no longer musl's, and spins on a lock whose holder may be a lowered thread.
ZIG_VERSION := 0.15.2
ZIG := $(BUILD)/zig-$(ZIG_VERSION)
PORTS := x86_64-linux-musl aarch64-linux-musl arm-linux-musleabihf riscv64-linux-musl
# -fno-sanitize: zig's own default, which would make it compile a library of its own for it. -Os when linking: the libc++
# and musl that the static worker has, else another one is compiled for the tests.
$(foreach port,$(PORTS),$(eval compiler.$(port) := $(ZIG)/bin/python -m ziglang c++ -target $(port) $(TEST) -g0 \
    -fno-sanitize=undefined -isystem $(ZIG)/headers $(HEADERS) $(SEPARATE)))
OWN_DOCTEST += $(PORTS)
$(foreach port,$(PORTS),$(eval $(call configuration_rules,$(port),$(BUILD)/test/$(port))))
$(foreach port,$(PORTS),$(eval $(BUILD)/test/$(port)/flags: | $(ZIG)/headers))

# Debian's headers of doctest and picojson and nothing else of /usr/include, which is for another C library.
$(ZIG)/headers:
	@echo "fetch   ziglang $(ZIG_VERSION)"
	@rm -rf $(ZIG) && python3 -m venv $(ZIG) && $(ZIG)/bin/pip install -q --disable-pip-version-check ziglang==$(ZIG_VERSION)
	@mkdir -p $@.new/doctest
	@for header in doctest/doctest.h picojson.h; do \
	    ln -s "$$(echo "#include <$$header>" | $(CXX) $(COMMON) -x c++ -M - | tr -s ' \\' '\n' | grep "/$$header$$" | \
	    xargs realpath)" $@.new/$$header || exit; done
	@mv $@.new $@

$(foreach port,$(PORTS),$(eval $(BUILD)/test/$(port)/unit: LDFLAGS += -static -Os))

run.aarch64-linux-musl := packaging/emulate.sh qemu-aarch64-static
run.arm-linux-musleabihf := packaging/emulate.sh qemu-arm-static
run.riscv64-linux-musl := packaging/emulate.sh qemu-riscv64-static

# No machine of these systems is at hand: that it compiles is all that is said of them.
COMPILED_ONLY := x86_64-macos aarch64-macos x86_64-freebsd
PORTABILITY := $(addsuffix /unit,$(PORTS)) $(addprefix compiled/,$(COMPILED_ONLY))
.PHONY: portability portability-musl
portability:  ## the unit tests with musl on four processors; compile-only for macOS and FreeBSD
	@tools/deps.sh portability
	@$(call run_checks,$(PORTABILITY))
portability-musl:  ## the same on x86-64 only, as in `make check`
	@$(call run_checks,x86_64-linux-musl/unit)
# The probe is for Linux: it accepts and forks by calls that others do not have. `make check` compiles the headers alone.
check ci: export ELSEWHERE :=
ELSEWHERE ?= $(patsubst %,$(BUILD)/programs/%.cpp,$(filter-out hello_worker shutdown-probe,$(PROGRAMS)))
$(RESULTS)/compiled/%: $(ELSEWHERE) FORCE | $(ZIG)/headers
	@$(RUN) packaging/compile.sh $(BUILD)/compiled/$* '$(ELSEWHERE)' -- \
	    $(ZIG)/bin/python -m ziglang c++ -target $* $(COMMON) -Wall -Wextra -Werror -isystem $(ZIG)/headers $(HEADERS)
CHECK_PROGRAMS += x86_64-linux-musl/unit
CHECKS += compiled/aarch64-macos compiled/x86_64-freebsd

# ---- make install ----------------------------------------------------------------------------------------------------

# The variants of the main header stand alone, and have one include guard; another one after the small one is an error.
PREFIX ?= /usr/local
DESTDIR ?=
HASH := \#
VERSION := $(shell sed -n 's/^$(HASH)define OJS_SHUTDOWN_VERSION "\(.*\)".*/\1/p' src/ojs/base/config.hpp)
RELEASE := $(BUILD)/dist/ojs_shutdown-$(VERSION)
PICOJSON = $(shell echo '$(HASH)include <picojson.h>' | $(CXX) $(COMMON) -x c++ -M - | tr -s ' \\' '\n' | grep '/picojson\.h$$')
VARIANTS := $(addprefix $(RELEASE)/,ojs_shutdown.hpp ojs_shutdown_core.hpp ojs_shutdown_loop.hpp ojs_shutdown_bundled.hpp)
EXTENSIONS := $(patsubst extensions/%,$(RELEASE)/%,$(wildcard extensions/*.hpp))
PACKAGE := $(addprefix share/ojs_shutdown/ojs_shutdown-,config.cmake config-version.cmake)
TEMPLATES := lib/pkgconfig/ojs_shutdown.pc $(filter %-version.cmake,$(PACKAGE))
INSTALLED := $(addprefix include/,$(notdir $(VARIANTS) $(EXTENSIONS))) $(TEMPLATES) $(filter-out $(TEMPLATES),$(PACKAGE))
TO := $(DESTDIR)$(PREFIX)
.PHONY: install uninstall
install: $(VARIANTS) $(EXTENSIONS)  ## headers, CMake package and ojs_shutdown.pc to PREFIX (/usr/local), below DESTDIR
	@install -d $(addprefix $(TO)/,include lib/pkgconfig share/ojs_shutdown)
	@install -m 644 $(VARIANTS) $(EXTENSIONS) $(TO)/include
	@install -m 644 packaging/ojs_shutdown-config.cmake $(TO)/share/ojs_shutdown
	@for file in $(TEMPLATES); do \
	    sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' packaging/$${file##*/}.in >$(TO)/$$file || exit; done
uninstall:  ## remove what `make install` installed
	@rm -f $(addprefix $(TO)/,$(INSTALLED))
	@rmdir $(TO)/share/ojs_shutdown 2>/dev/null || true

amalgamated.ojs_shutdown :=
amalgamated.ojs_shutdown_core := --modules core  # no worker, no sockets, no JSON: signals, the lifecycle, the barrier
amalgamated.ojs_shutdown_loop := --modules core,loop  # and ojs::loop, its options and parts
amalgamated.ojs_shutdown_bundled = --bundle-picojson $(PICOJSON)  # with its license
$(VARIANTS): $(RELEASE)/%.hpp: FORCE
	@mkdir -p $(@D)
	@python3 tools/amalgamate.py $(amalgamated.$*) --output $@
$(EXTENSIONS): $(RELEASE)/%: extensions/%
	@mkdir -p $(@D)
	@cp $< $@

# ---- make dist -------------------------------------------------------------------------------------------------------

# As examples/deploy/Dockerfile builds the worker; that file says what each flag is for.
IMAGE := -Oz -Xclang -Oz -flto -ffunction-sections -fdata-sections -fno-rtti -fno-sanitize=undefined -D_FORTIFY_SOURCE=2 \
         -U_LIBCPP_HARDENING_MODE -D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_FAST -Xclang -stack-protector -Xclang 2 \
         -fPIE -static -pie -s
image.worker := examples/deploy/hold_signals.S -Wl,-e,hold_signals  # not the probe: it does not run as PID 1
# $(call static_rule,PROGRAM,PROCESSOR)
define static_rule
STATIC_PROGRAMS += $(RELEASE)/$(1)-$(2)
$(RELEASE)/$(1)-$(2): $(BUILD)/programs/$(1).cpp $(sources.$(1)) $(wildcard $(dir $(firstword $(sources.$(1))))*.hpp) \
    $(filter %.S,$(image.$(1))) examples/deploy/no_demangler.cpp ojs_shutdown.hpp $(wildcard extensions/*.hpp) \
    packaging/packaging.mk | $(ZIG)/headers
	@mkdir -p $$(@D)
	@echo "link    $$@"
	@$$(LOWER) $(ZIG)/bin/python -m ziglang c++ -target $(2)-linux-musl -std=c++17 $(IMAGE) -isystem $(ZIG)/headers \
	    $(HEADERS) $$< $(image.$(1)) examples/deploy/no_demangler.cpp -o $$@
endef
$(foreach program,worker shutdown-probe,$(foreach processor,x86_64 aarch64,$(eval $(call static_rule,$(program),$(processor)))))

# What CMake, Conan and vcpkg fetch. Reproducible: the same bytes wherever it is made.
ARCHIVE := $(RELEASE)/ojs_shutdown-$(VERSION).tar.gz
ARCHIVED := CMakeLists.txt LICENSE ojs_shutdown.hpp $(wildcard extensions/*.hpp packaging/*.cmake packaging/*.in)
$(ARCHIVE): $(ARCHIVED)
	@mkdir -p $(@D)
	@tar --sort=name --mtime='1980-01-01 UTC' --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r \
	    --transform='s|^|ojs_shutdown-$(VERSION)/|' -cf - $^ | gzip -9n >$@
# The section of this version, without its heading.
$(RELEASE)/RELEASE_NOTES.md: CHANGELOG.md
	@mkdir -p $(@D)
	@awk -v heading='$(HASH)$(HASH) [$(VERSION)]' \
	    '/^## /{on = index($$0, heading) == 1; found += on; next} on; END{exit !found}' $< >$@
$(RELEASE)/LICENSE: LICENSE
	@mkdir -p $(@D)
	@cp $< $@

RELEASED := $(VARIANTS) $(EXTENSIONS) $(STATIC_PROGRAMS) $(ARCHIVE) $(addprefix $(RELEASE)/,RELEASE_NOTES.md LICENSE)
.PHONY: dist
dist: $(RELEASED)  ## the files of a release, with static programs, in build/dist/ojs_shutdown-VERSION
	@rm -f $(filter-out $(RELEASED),$(wildcard $(RELEASE)/*))
	@cd $(RELEASE) && sha256sum $(notdir $^) >SHA256SUMS

$(RESULTS)/packaging $(RESULTS)/container: $(STATIC_PROGRAMS)
$(RESULTS)/packaging: FORCE
	@OJS_TEST_BUILD=$(BUILD) CXX='$(CXX)' $(RUN) python3 -B tests/packaging/packaging_test.py
CHECKS += packaging

# ---- recipes for collections of packages -----------------------------------------------------------------------------

CONAN_VERSION := 2.34.0
CONAN := $(BUILD)/conan-$(CONAN_VERSION)/bin/conan
$(CONAN):
	@echo "fetch   conan $(CONAN_VERSION)"
	@rm -rf $(BUILD)/conan-$(CONAN_VERSION) && python3 -m venv $(BUILD)/conan-$(CONAN_VERSION)
	@$(BUILD)/conan-$(CONAN_VERSION)/bin/pip install -q --disable-pip-version-check conan==$(CONAN_VERSION)
$(RESULTS)/recipes: $(ARCHIVE) FORCE | $(CONAN)
	@OJS_TEST_BUILD=$(BUILD) CONAN=$(abspath $(CONAN)) CXX='$(CXX)' $(RUN) python3 -B tests/packaging/recipes_test.py
CHECKS += recipes
