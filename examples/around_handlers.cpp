// Code around every handler: a trace span, and a histogram of run times. Needs nothing but a backend:
//
//     OJS_URL=http://127.0.0.1:8080 ./around_handlers
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "ojs_ops.hpp"

namespace {
using std::chrono::steady_clock;

const char* name_of(ojs::outcome_kind kind) {
    switch (kind) {
        case ojs::outcome_kind::implicit:
        case ojs::outcome_kind::done: return "done";
        case ojs::outcome_kind::retry: return "retry";
        case ojs::outcome_kind::discard: return "discard";
        case ojs::outcome_kind::interrupted: return "interrupted";
    }
    return "";
}

// With OpenTelemetry, start a span here whose parent is `traceparent`. Its destructor ends it, also after an exception.
class span {
  public:
    explicit span(const ojs::job_context& job) : name_(job.type()), parent_(job.meta("traceparent")) {}
    ~span() { std::printf("span %s parent=%s status=%s\n", name_.c_str(), parent_.c_str(), status_); }
    void set_status(const char* status) { status_ = status; }

  private:
    std::string name_;
    std::string parent_;
    const char* status_ = "error";
};

// Runs below 1, 10, 100, ... ms.
class histogram {
  public:
    void add(steady_clock::duration time) {
        std::size_t at = 0;
        for (auto limit = std::chrono::milliseconds(1); at + 1 < counts_.size() && time >= limit; limit *= 10) ++at;
        ++counts_[at];
    }
    void print() const {
        for (const auto& each : counts_) std::printf("%u ", each.load());
        std::printf("runs below 1, 10, 100, 1000 ms, and longer\n");
    }

  private:
    std::array<std::atomic<unsigned>, 5> counts_{};
};
}  // namespace

int main(int argc, char** argv) {
    auto options = ojs::worker_options::from_environment();
    if (options) options->extensions.add(ojs::ops());
    if (const auto status = ojs::run_command(argc, argv, options)) return *status;
    ojs::worker worker(*options);
    worker.wrap([](ojs::job_context& job, const ojs::next_handler& next) {
        span traced(job);
        traced.set_status(name_of(next().kind));
    });
    histogram times;
    worker.wrap([&times](ojs::job_context&, const ojs::next_handler& next) {
        const struct timer {
            histogram& to;
            steady_clock::time_point start = steady_clock::now();
            ~timer() { to.add(steady_clock::now() - start); }
        } timed{times};
        next();
    });
    worker.register_handler("hello.greet",
                            [](ojs::job_context& job) { std::printf("hello, %s\n", job.arg_or(0, "world").c_str()); });
    worker.on_shutdown("histogram", [&times] { times.print(); });
    return worker.run();
}
