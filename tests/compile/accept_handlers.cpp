// flags: -Wpedantic -Waddress -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wzero-as-null-pointer-constant
// What may be given as a handler, and as a function: some of these can be compared with nullptr, and must not warn; and
// every number type that a handler may want.
#include <functional>
#define OJS_SHUTDOWN_SEPARATE
#include <ojs_shutdown.hpp>

ojs::outcome plain(ojs::job_context&) { return {}; }
void silent(const ojs::job_context&) noexcept {}

void set_up(ojs::worker& worker, const ojs::function<ojs::outcome(ojs::job_context&)>& own) {
    worker.register_handler("a", plain);
    worker.register_handler("b", &silent);
    worker.register_handler("c", own);
    worker.register_handler("d", std::function<std::string(ojs::job_context&)>());
    worker.register_handler("e", [](auto& job) { return job.args_json(); });
    worker.register_handler("f", [](ojs::job_context&) { return "null"; });
    worker.register_handler("g", [](ojs::job_context& job) mutable { return ojs::outcome::retry(job.id()); });
    worker.register_handler("h", [](ojs::job_context&) -> ojs::outcome { return {}; }, {true});
}

template <class... Numbers>
double sum_of(const ojs::job_context& job) {
    return (static_cast<double>(job.arg<Numbers>(0).value_or(job.require_arg<Numbers>(0))) + ...);
}
std::size_t all(const ojs::job_context& job) {
    return job.require_arg<std::string>(0).size() + job.arg<std::string>(1)->size() +
           static_cast<std::size_t>(
               sum_of<signed char, unsigned char, short, unsigned short, int, unsigned, long, unsigned long, long long,
                      unsigned long long, std::size_t, std::int8_t, std::uint64_t, float, double, long double, bool>(
                   job));
}
