// flags: -Wpedantic -Wconversion -Wsign-conversion -Wold-style-cast
// Every number type that a handler may want.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

template <class... Numbers>
bool has_all(const ojs::job_context& job) {
    return (job.arg<Numbers>(0).has_value() && ...);
}

template <class... Numbers>
double sum_of(const ojs::job_context& job) {
    return (static_cast<double>(job.require<Numbers>(0)) + ...);
}

double all_required(const ojs::job_context& job) {
    return sum_of<int, unsigned long long, float, long double, bool>(job) +
           static_cast<double>(job.require<std::string>(1).size());
}

bool all(const ojs::job_context& job) {
    return has_all<signed char, unsigned char, short, unsigned short, int, unsigned, long, unsigned long,
                   long long, unsigned long long, std::size_t, std::int8_t, std::uint64_t, float, double,
                   long double, bool, std::string>(job);
}
