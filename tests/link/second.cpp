// The other half of first.cpp. It includes an extension, which its neighbour does not.
#include <ojs_launcher.hpp>

__attribute__((visibility("default"))) bool second_sees_installer(const ojs::lifecycle& target) {
    return ojs::detail::drives_signals(target);
}

__attribute__((visibility("default"))) bool second_install_is_busy() {
    ojs::lifecycle own;
    const ojs::result<ojs::signals> refused = ojs::signals::install(own);
    return !refused && refused.error().code == ojs::errc::busy;
}
