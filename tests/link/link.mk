# What must link, and together: in each pattern % is a configuration.

# Two files that must share one process-wide state: both header-only; one of each form; the second in a shared library,
# all with hidden visibility.
$T/two_units: $O/tests/link/first.o $O/tests/link/second.o
	$(call link,$(compiler.$*))
$T/mixed: $O/tests/link/first.o $T-separate/obj/tests/link/second.o $T-separate/obj/tests/link/implementation.o
	$(call link,$(compiler.$*))
$T/libsecond.so: $T-hidden/obj/tests/link/second.o
	$(call link,$(compiler.$*) -shared)
$T/hidden: $T-hidden/obj/tests/link/first.o $T/libsecond.so
	$(call link,$(compiler.$*))

# The header beside itself under another version's name, which must have no symbol of ours in common with it.
$T/versions: $O/tests/link/versions.o $O/tests/link/other_version.o $O/tests/link/implementation.o
	@for each in $(wordlist 1,2,$^); do nm --defined-only $$each | sed -n 's/.* [A-Zuv] //p' | sort -u; done | sort | \
	    uniq -d | { ! grep -E '3ojs|ojs_'; }
	$(call link,$(compiler.$*))
$O/tests/link/other_version.o: tests/link/other_version.cpp $(BUILD)/other_version.hpp $T/flags
	$(call compile,$(compiler.$*) -I$(BUILD))
$(BUILD)/other_version.hpp: ojs_shutdown.hpp
	@mkdir -p $(@D)
	@sed -e 's/\<v[0-9]*_[0-9]*_[0-9]*\>/v0_0_0/g' -e 's/^\(#define OJS_SHUTDOWN_VERSION \).*/\1"0.0.0"/' $< >$@
