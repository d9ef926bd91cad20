// A router in front of a launcher's group of keyvalue_runners: it goes by the launcher's hooks alone.
#pragma once
#include <algorithm>
#include <atomic>
#include <climits>
#include <memory>
#include <mutex>
#include <thread>

#include "ojs_launcher.hpp"

namespace test {

class router {
  public:
    // `lag`: the delay until it applies a change, as with many machines.
    explicit router(std::chrono::milliseconds lag) : lag_(lag) {}

    // launcher_options::on_routable
    void add(const ojs::process_info& of) {
        const std::string prefix = "serving on ";  // by keyvalue_runner, when it is ready
        const std::string& text = of.readiness.message;
        if (text.compare(0, prefix.size(), prefix) != 0) return;
        auto client = ojs::http_client::create("http://" + text.substr(prefix.size()));
        if (!client) return;
        const std::lock_guard<std::mutex> held(mutex_);
        routes_.emplace_back(new route{of.id, std::move(*client), {}});
    }
    // launcher_options::on_unroutable: returns once its requests in flight are answered.
    void remove(const ojs::process_info& of) {
        const ojs::time_point began = ojs::steady_clock::now();
        std::this_thread::sleep_for(lag_);
        std::shared_ptr<route> gone;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            const auto found = std::find_if(routes_.begin(), routes_.end(),
                                            [&](const auto& each) { return each->id == of.id; });
            if (found != routes_.end()) {
                gone = *found;
                routes_.erase(found);
            }
            fewest_ = std::min(fewest_.load(), static_cast<int>(routes_.size()));
        }
        if (!gone) return;
        gone->in_flight.close();
        gone->in_flight.wait_until(ojs::time_point::max());  // each has a deadline
        const auto took =
            std::chrono::duration_cast<std::chrono::milliseconds>(ojs::steady_clock::now() - began);
        if (took > slowest_removal_.load()) slowest_removal_ = took;
    }

    // Passes on what one refuses because it drains, to the next one. That is counted: it happens only where remove() takes
    // longer than a launcher waits.
    ojs::result<ojs::http_response> send(const ojs::http_request& request) {
        ojs::http_call call;
        call.deadline = ojs::deadline_after(std::chrono::seconds(20));
        for (;;) {
            const std::shared_ptr<route> to = next();
            if (!to) return ojs::error{ojs::errc::unreachable, 0, "nobody may be given work"};
            const ojs::drain_barrier::ticket ticket = to->in_flight.enter();
            if (!ticket) continue;  // and it is no longer in the table
            auto answer = to->client.send(request, call);
            const bool refused = answer && answer->status == 503;
            if (!refused || ojs::steady_clock::now() >= call.deadline) return answer;
            ++passed_on_;
        }
    }

    int fewest() const { return fewest_; }  // routes, whenever one was taken off
    int passed_on() const { return passed_on_; }
    std::chrono::milliseconds slowest_removal() const { return slowest_removal_; }

  private:
    struct route {
        const std::string id;
        ojs::http_client client;
        ojs::drain_barrier in_flight;
    };

    std::shared_ptr<route> next() {
        const std::lock_guard<std::mutex> held(mutex_);
        return routes_.empty() ? nullptr : routes_[++turn_ % routes_.size()];
    }

    const std::chrono::milliseconds lag_;
    std::mutex mutex_;
    std::vector<std::shared_ptr<route>> routes_;
    std::size_t turn_ = 0;
    std::atomic<int> fewest_{INT_MAX};
    std::atomic<int> passed_on_{0};
    std::atomic<std::chrono::milliseconds> slowest_removal_{std::chrono::milliseconds(0)};
};

// Clients that put values through a router, one request after the other, until they are stopped.
class requests {
  public:
    requests(router& through, int clients) {
        for (int i = 0; i < clients; ++i) threads_.emplace_back([&through, this, i] { work(through, i); });
    }
    requests(const requests&) = delete;
    requests& operator=(const requests&) = delete;
    ~requests() { stop(); }

    void stop() {
        ends_ = true;
        for (std::thread& each : threads_) each.join();
        threads_.clear();
    }
    int sent() const { return sent_; }
    int failed() const { return failed_; }
    // What came of one that failed; read after stop().
    std::string failure() const { return failure_; }

  private:
    void work(router& through, int client) {
        while (!ends_) {
            const std::string body = std::to_string(++sent_);
            const auto answer = through.send({"PUT", "/client-" + std::to_string(client), {}, body});
            if (answer && answer->status == 204) continue;
            ++failed_;
            const std::lock_guard<std::mutex> held(mutex_);
            failure_ = answer ? "status " + std::to_string(answer->status) : answer.error().text;
        }
    }

    std::atomic<bool> ends_{false};
    std::atomic<int> sent_{0};
    std::atomic<int> failed_{0};
    std::mutex mutex_;
    std::string failure_;
    std::vector<std::thread> threads_;
};

}  // namespace test
