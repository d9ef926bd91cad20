// expect: nodiscard
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void work(const ojs::cancel_token& token) {
    token.sleep_for(std::chrono::seconds(1));
}
