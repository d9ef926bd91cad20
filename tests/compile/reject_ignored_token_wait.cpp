// expect: nodiscard
// The condition holds only if the wait returned true.
#include <condition_variable>
#include <mutex>
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void work(const ojs::cancel_token& token, std::condition_variable& changed,
          std::unique_lock<std::mutex>& held) {
    token.wait(changed, held, [] { return true; });
}
