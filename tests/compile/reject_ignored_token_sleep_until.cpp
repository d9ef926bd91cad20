// expect: nodiscard
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void work(const ojs::cancel_token& token) {
    token.sleep_until(ojs::time_point::max());
}
