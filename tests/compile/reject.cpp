// flags: -DOJS_SHUTDOWN_SEPARATE=1
// What must not compile: at each marked line the compiler must say the text.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <ojs_launcher.hpp>

// A number or a text? std::int8_t and std::string say which.
char char_argument(ojs::job_context& job) {
    return job.arg<char>(0).value_or('?');  // expect: arg<T>: std::string, bool, or an integer
}
enum class colour { red };
colour enum_argument(ojs::job_context& job) {
    return job.arg<colour>(0).value_or(colour::red);  // expect: arg<T>: std::string, bool, or an integer
}
std::string_view view_argument(ojs::job_context& job) {
    return job.arg<std::string_view>(0).value_or("");  // expect: arg<T>: std::string, bool, or an integer
}

// Does true mean done, or try again?
void handlers(ojs::worker& of) {
    of.register_handler("a", [](ojs::job_context&) { return true; });     // expect: returns nothing, a result
    of.register_handler("b", [](ojs::job_context&) { return nullptr; });  // expect: returns nothing, a result
    of.register_handler("c", [](ojs::job) {});                            // expect: is called with an ojs::job_context&
}

ojs::drain_barrier copied_barrier(const ojs::drain_barrier& one) {
    return one;  // expect: deleted
}
ojs::signals copied_signals(const ojs::signals& one) {
    return one;  // expect: deleted
}
ojs::drain_barrier::ticket copied_ticket(const ojs::drain_barrier::ticket& one) {
    return one;  // expect: deleted
}

// A result is not its value: it has to be looked at.
std::chrono::milliseconds error_as_value() {
    return ojs::parse_duration("30s");  // expect: conver
}

void ignored(ojs::worker& worker, ojs::job_context& job, ojs::lifecycle& life, ojs::drain_barrier& requests) {
    worker.run();                            // expect: nodiscard
    ojs::outcome::interrupted();             // expect: nodiscard
    job.on_cancel([] {});                    // expect: nodiscard
    ojs::signals::install(life);             // expect: nodiscard
    job.sleep_for(std::chrono::seconds(1));  // expect: nodiscard
    requests.enter();                        // expect: nodiscard
}
void ignored_waits(const ojs::cancel_token& token, std::condition_variable& changed,
                   std::unique_lock<std::mutex>& held) {
    token.sleep_for(std::chrono::seconds(1));        // expect: nodiscard
    token.sleep_until(ojs::time_point::max());       // expect: nodiscard
    token.wait(changed, held, [] { return true; });  // expect: nodiscard
}

// No public constructor takes a type of the library's own.
ojs::launcher internal_constructor() {
    return {ojs::launcher_options{}, nullptr, ojs::detail::instance_starter{}};  // expect: private
}

// The lifecycle must outlive its signals, so a temporary one is refused.
ojs::result<ojs::signals> signals_of_a_temporary() {
    return ojs::signals::install(ojs::lifecycle());  // expect: bind
}
