// Linked with second.cpp in three ways: both header-only; this one header-only and the other separate; and the other
// in a shared library, everything with hidden visibility. In each there must be one process-wide state.
#include <cstdio>
#include <ojs_shutdown.hpp>

bool second_sees_installer(const ojs::lifecycle& target);
bool second_install_is_busy();

int main() {
    ojs::lifecycle lifecycle;
    if (ojs::signals::installed_for(lifecycle) || second_sees_installer(lifecycle)) {
        std::puts("an installer is seen before there is one");
        return 1;
    }
    const ojs::result<ojs::signals> installed = ojs::signals::install(lifecycle);
    if (!installed) {
        std::printf("cannot install: %s\n", installed.error().text.c_str());
        return 1;
    }
    if (!second_sees_installer(lifecycle)) {
        std::puts("the second file does not see the installer of the first");
        return 1;
    }
    if (!second_install_is_busy()) {
        std::puts("the second file installed signals on top of the first");
        return 1;
    }
    return 0;
}
