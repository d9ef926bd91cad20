// The other half of first.cpp. It opts into a leaf, which its neighbour does not.
#define OJS_SHUTDOWN_LAUNCHER 1
#include <ojs_shutdown.hpp>

__attribute__((visibility("default"))) bool second_sees_installer(const ojs::lifecycle& target) {
    return ojs::signals::installed_for(target);
}

__attribute__((visibility("default"))) bool second_install_is_busy() {
    ojs::lifecycle own;
    const ojs::result<ojs::signals> refused = ojs::signals::install(own);
    return !refused && refused.error().code == ojs::errc::busy;
}
