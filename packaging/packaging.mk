# Other processors, other C libraries, other systems: `make portability`. Releases: `make install`, `make dist`.
#
# The compiler is zig's clang with its own libc++ and musl, a package of pip's: the one cross compiler for all of these
# that is one download. It stays in build/; what it compiles of its own libraries is kept in its cache, for all trees.
# Not 0.16 and later (as of 0.17.1): their malloc() is no longer musl's, and spins on a lock whose holder may be a
# lowered thread.
ZIG_VERSION := 0.15.2
ZIG := $(BUILD)/zig-$(ZIG_VERSION)
ZIGCXX := $(ZIG)/bin/python -m ziglang c++
BY_ZIG := x86_64-linux-musl x86-linux-musl aarch64-linux-musl arm-linux-musleabihf riscv64-linux-musl
PORTS := $(BY_ZIG) s390x-linux-gnu
# -fno-sanitize: zig's own default, which would make it compile a library of its own for it. -Os when linking: the libc++
# and musl that the static worker has, else another one is compiled for the tests.
PORTED = $(TEST) -g0 -isystem $(ZIG)/headers $(HEADERS) $(SEPARATE)
$(foreach port,$(BY_ZIG),$(eval compiler.$(port) = $(ZIGCXX) -target $(port) -fno-sanitize=undefined $$(PORTED)))
# Big-endian, by Debian's compiler: with musl, qemu shows no nanoseconds of a file's times.
compiler.s390x-linux-gnu = s390x-linux-gnu-g++ $(PORTED)
$(PORTS:%=$(BUILD)/test/%/flags): | $(ZIG)/headers
$(addprefix $(BUILD)/test/,$(call each,$(BY_ZIG),unit portable)): LDFLAGS += -static -Os
# The layers whose data could depend on the size of a word or its bytes' order.
$(PORTS:%=$(BUILD)/test/%/portable): %/portable: $(addprefix %/obj/,layers/base.o layers/core.o layers/host.o \
    layers/loop.o layers/net.o layers/spool.o tests/link/implementation.o tests/main.o)
	$(call link,$(compiler.$(notdir $*)))

# $(call fetch,FOLDER,PACKAGE==VERSION): a package of pip's.
define fetch
	@echo "fetch   $(2), to $(1)"
	@rm -rf $(1) && python3 -m venv $(1) && $(1)/bin/pip install -q --disable-pip-version-check $(2)
endef
# The path of a header, as the compiler finds it.
header_path = $$(echo '$(HASH)include <$(1)>' | $(CXX) $(COMMON) -x c++ -M - | \
    tr -s ' \\' '\n' | grep '/$(1)$$' | xargs realpath)
# Debian's headers of doctest and picojson and nothing else of /usr/include, which is for another C library.
$(ZIG)/headers:
	$(call fetch,$(ZIG),ziglang==$(ZIG_VERSION))
	@mkdir -p $@.new/doctest
	@ln -s "$(call header_path,doctest/doctest.h)" $@.new/doctest/doctest.h
	@ln -s "$(call header_path,picojson.h)" $@.new/picojson.h
	@mv $@.new $@

$(foreach port,$(filter-out x86%,$(PORTS)),$(eval \
    run.$(port) := packaging/emulate.sh qemu-$(firstword $(subst -, ,$(port)))-static))
run.s390x-linux-gnu += -L /usr/s390x-linux-gnu
run.x86-linux-musl := $(if $(filter x86_64 i686,$(shell uname -m)),,packaging/emulate.sh qemu-i386-static)

portability:  ## the unit tests on six processors, of 32 and 64 bits; compile-only for macOS and FreeBSD
	@tools/deps.sh portability
	$(call run_checks,$(PORTS:%=%/unit) $(addprefix compiled/,x86_64-macos aarch64-macos x86_64-freebsd))
portability-musl:  ## the same on x86-64 only, as in `make nightly`
	$(call run_checks,x86_64-linux-musl/unit)
# No machine of these systems is at hand: that it compiles is all that is said of them. The probe is for Linux: it accepts
# and forks by calls that others do not have. `make nightly` compiles the headers alone.
nightly: export ELSEWHERE :=
ELSEWHERE ?= $(patsubst %,$(BUILD)/programs/%.cpp,$(filter-out hello_worker shutdown-probe,$(PROGRAMS)))
$(RESULTS)/compiled/%: $$(ELSEWHERE) FORCE | $(ZIG)/headers
	@$(RUN) packaging/compile.sh $(BUILD)/compiled/$* '$(ELSEWHERE)' -- \
	    $(ZIGCXX) -target $* $(COMMON) -Wall -Wextra -Werror -isystem $(ZIG)/headers $(HEADERS)

# ---- Debian 13 -------------------------------------------------------------------------------------------------------

# Newer compilers: the headers in every standard, and the unit tests, in an image of its own, which Makefile does not search
# for .d files.
DEBIAN := $(BUILD)/debian-13
DEBIAN_CHECKS := $(addprefix debian-13/,g++ clang++)
debian: deps deps-debian  ## g++ 14 and Clang 19: C++17 to 26 without a warning, the unit tests, in an image of Debian 13
	$(call run_checks,$(DEBIAN_CHECKS))
$(DEBIAN):
	@echo "make    $@"
	@packaging/debian.sh $@ true
$(addprefix $(RESULTS)/,$(DEBIAN_CHECKS)): FORCE | $(DEBIAN)
	@$(RUN) packaging/debian.sh $(DEBIAN) make -s newer BUILD=/build/$(@F) CXX=$(@F) \
	    TEST_CXXFLAGS='-O0 -Wall -Wextra -Wno-missing-field-initializers -Werror'
newer: FORCE
	$(call run_checks,$(call each,warnings/$(CXX),$(NEWER)) header-separate/unit)

# ---- make install ----------------------------------------------------------------------------------------------------

# The variants of the main header stand alone, and have one include guard; another one after the small one is an error.
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/^$(HASH)define OJS_SHUTDOWN_VERSION "\(.*\)".*/\1/p' src/ojs/base/config.hpp)
RELEASE := $(BUILD)/dist/ojs_shutdown-$(VERSION)
VARIANTS := $(addprefix $(RELEASE)/,ojs_shutdown.hpp ojs_shutdown_core.hpp ojs_shutdown_loop.hpp ojs_shutdown_bundled.hpp)
EXTENSIONS := $(patsubst extensions/%,$(RELEASE)/%,$(wildcard extensions/*.hpp))
TEMPLATES := lib/pkgconfig/ojs_shutdown.pc share/ojs_shutdown/ojs_shutdown-config-version.cmake
TO := $(DESTDIR)$(PREFIX)
install: $(VARIANTS) $(EXTENSIONS)  ## headers, CMake package and ojs_shutdown.pc to PREFIX (/usr/local), below DESTDIR
	@install -d $(addprefix $(TO)/,include lib/pkgconfig share/ojs_shutdown)
	@install -m 644 $^ $(TO)/include
	@install -m 644 packaging/ojs_shutdown-config.cmake $(TO)/share/ojs_shutdown
	@for file in $(TEMPLATES); do \
	    sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' packaging/$${file##*/}.in >$(TO)/$$file || exit; done
uninstall:  ## remove what `make install` installed
	@rm -f $(addprefix $(TO)/,$(addprefix include/,$(notdir $(VARIANTS) $(EXTENSIONS))) $(TEMPLATES) \
	    share/ojs_shutdown/ojs_shutdown-config.cmake)
	@rmdir $(TO)/share/ojs_shutdown 2>/dev/null || true

amalgamated.ojs_shutdown_core := --modules core  # no worker, no sockets, no JSON: signals, the lifecycle, the barrier
amalgamated.ojs_shutdown_loop := --modules core,loop  # and ojs::loop, its options and parts
amalgamated.ojs_shutdown_bundled = --bundle-picojson $(call header_path,picojson.h)  # with its license
$(VARIANTS): $(RELEASE)/%.hpp: FORCE
	@mkdir -p $(@D)
	@python3 tools/amalgamate.py $(amalgamated.$*) --output $@
$(EXTENSIONS) $(RELEASE)/LICENSE: $(RELEASE)/%: $$(wildcard $$* extensions/$$*)
	@mkdir -p $(@D)
	@cp $< $@

# ---- make dist -------------------------------------------------------------------------------------------------------

# As examples/deploy/Dockerfile builds the worker; that file says what each flag is for.
IMAGE := -Oz -Xclang -Oz -flto -ffunction-sections -fdata-sections -fno-rtti -fno-sanitize=undefined -D_FORTIFY_SOURCE=2 \
         -U_LIBCPP_HARDENING_MODE -D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_FAST -Xclang -stack-protector -Xclang 2 \
         -fPIE -static -pie -s
image.worker := examples/deploy/hold_signals.S -Wl,-e,hold_signals  # not the probe: it does not run as PID 1
# `make ci` has its own only: to compile one takes a minute or two.
PROCESSORS ?= x86_64 aarch64
STATIC_PROGRAMS := $(foreach program,worker shutdown-probe,$(addprefix $(RELEASE)/$(program)-,$(PROCESSORS)))
# Of PROGRAM-PROCESSOR.
program = $(patsubst %-$(lastword $(subst -, ,$*)),%,$*)
processor = $(patsubst $(program)-%,%,$*)
$(STATIC_PROGRAMS): $(RELEASE)/%: $(BUILD)/programs/$$(program).cpp $$(call sources_of,$$(program)) \
    $$(wildcard $$(dir $$(firstword $$(call sources_of,$$(program))))*.hpp) $$(filter %.S,$$(image.$$(program))) \
    examples/deploy/no_demangler.cpp ojs_shutdown.hpp $(wildcard extensions/*.hpp) packaging/packaging.mk | $(ZIG)/headers
	@mkdir -p $(@D)
	@echo "link    $@"
	@$(LOWER) $(ZIGCXX) -target $(processor)-linux-musl -std=c++17 $(IMAGE) -isystem $(ZIG)/headers \
	    $(HEADERS) $< $(image.$(program)) examples/deploy/no_demangler.cpp -o $@

# What CMake, Conan, Meson, Bazel and vcpkg fetch. Reproducible: the same bytes wherever it is made.
ARCHIVE := $(RELEASE)/ojs_shutdown-$(VERSION).tar.gz
$(ARCHIVE): BUILD.bazel CMakeLists.txt LICENSE MODULE.bazel meson.build ojs_shutdown.hpp $(wildcard extensions/*.hpp packaging/*.cmake packaging/*.in)
	@mkdir -p $(@D)
	@tar --sort=name --mtime='1980-01-01 UTC' --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r \
	    --transform='s|^|ojs_shutdown-$(VERSION)/|' -cf - $^ | gzip -9n >$@
# The section of this version, without its heading.
$(RELEASE)/RELEASE_NOTES.md: CHANGELOG.md
	@mkdir -p $(@D)
	@awk -v heading='$(HASH)$(HASH) [$(VERSION)]' \
	    '/^## /{on = index($$0, heading) == 1; found += on; next} on; END{exit !found}' $< >$@
LISTED := $(VARIANTS) $(EXTENSIONS) $(STATIC_PROGRAMS) $(ARCHIVE) $(addprefix $(RELEASE)/,RELEASE_NOTES.md LICENSE)
SBOM := $(RELEASE)/ojs_shutdown-$(VERSION).cdx.json
$(SBOM): $(LISTED) packaging/sbom.py
	@packaging/sbom.py $(VERSION) "$(call header_path,picojson.h)" \
	    $(wildcard $(ZIG)/lib/python3*/site-packages/ziglang/lib) $(LISTED) >$@
RELEASED := $(LISTED) $(SBOM)
dist: $(RELEASED)  ## the files of a release, with static programs and SBOM, in build/dist/ojs_shutdown-VERSION
	@rm -f $(filter-out $(RELEASED),$(wildcard $(RELEASE)/*))
	@cd $(RELEASE) && sha256sum $(notdir $^) >SHA256SUMS

$(RESULTS)/packaging: $(STATIC_PROGRAMS)
CONAN := $(BUILD)/conan-2.34.0
$(CONAN)/bin/conan:
	$(call fetch,$(CONAN),conan==2.34.0 'cyclonedx-python-lib[json-validation]==11.12.0')
$(RESULTS)/recipes: tests/packaging/recipes_test.py $(ARCHIVE) $(SBOM) FORCE | $(CONAN)/bin/conan
	@CONAN=$(abspath $(CONAN)/bin/conan) $(RUN_SCRIPT) $<
# What `make nightly` has beside `packaging`.
$(RESULTS)/subprojects: tests/packaging/subprojects_test.py $(ARCHIVE) FORCE
	@$(RUN_SCRIPT) $<
