// Linked with second.cpp in three ways: both header-only; this one header-only and the other separate; and the other
// in a shared library, everything with hidden visibility. In each there must be one process-wide state.
#include <cstdio>
#include <ojs_shutdown.hpp>

bool second_sees_installer(const ojs::lifecycle& target);
bool second_install_is_busy();

int main() {
    ojs::lifecycle lifecycle;
    const bool seen_before = ojs::detail::drives_signals(lifecycle) || second_sees_installer(lifecycle);
    const ojs::result<ojs::signals> installed = ojs::signals::install(lifecycle);
    const bool seen = second_sees_installer(lifecycle);
    const bool busy = second_install_is_busy();
    if (!seen_before && installed && seen && busy) return 0;
    std::printf("seen before: %d, installed: %d, seen: %d, busy: %d\n", seen_before, installed.has_value(), seen, busy);
    return 1;
}
