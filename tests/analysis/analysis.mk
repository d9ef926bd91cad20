# `make analyze`, which `make check` has too, and `make coverage`.

ANALYSES := analysis/clang-tidy analysis/cppcheck
CLANG_TIDY ?= clang-tidy
# All of src/ that needs no other library, as one file. What is off is in .clang-tidy and cppcheck.txt, with the reasons.
ANALYZED := -Isrc $(SEPARATE)
# What a compiler predefines, or a system header defines, which cppcheck does not read.
CPPCHECK := cppcheck -q --std=c++17 --language=c++ --enable=warning,performance,portability --inline-suppr \
    --error-exitcode=1 --suppressions-list=tests/analysis/cppcheck.txt -D__linux__ -D__x86_64__ -D__GNUC__=12 \
    -D__cpp_exceptions=199711 -DSIGRTMIN=34 -DSIGRTMAX=64

analyze: deps-check  ## clang-tidy and cppcheck on src/
	@$(call run_checks,$(ANALYSES))
$(RESULTS)/analysis/clang-tidy: FORCE
	@$(RUN) $(CLANG_TIDY) --quiet tests/link/implementation.cpp -- $(COMMON) $(ANALYZED)
$(RESULTS)/analysis/cppcheck: FORCE
	@$(RUN) $(CPPCHECK) $(ANALYZED) tests/link/implementation.cpp

# In a folder of its own, so that nothing else is compiled again. What is not reached is listed in missing.txt.
COVERAGE := $(BUILD)/coverage
coverage: deps-coverage  ## the lines of src/ that the tests reach, by layer
	@$(MAKE) -s $(JOBS) BUILD=$(COVERAGE) CXX=g++ CXXFLAGS=-O0 TEST_CXXFLAGS='-O0 --coverage -fprofile-update=atomic' \
	    FILE_BY_FILE= covered
	@gcovr --root . --filter src/ojs/ $(COVERAGE)/test --csv $(COVERAGE)/files.csv --txt $(COVERAGE)/missing.txt
	@awk -F, '{ split($$1, part, "/"); all[part[3]] += $$2; reached[part[3]] += $$3 } END { for (layer in all) if (layer) \
	    printf "%-12s %5d of %5d lines, %.1f %%\n", layer, reached[layer], all[layer], 100 * reached[layer] / all[layer] }' \
	    $(COVERAGE)/files.csv | sort
# Tests that measure their own process may fail so, which the table does not depend on.
covered: FORCE
	@find $(BUILD) -name '*.gcda' -delete
	@-$(call run_checks,src/unit src-separate/process src-separate/recovery)
