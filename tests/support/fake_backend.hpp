#pragma once

#include "test.hpp"

namespace test {
// A backend that keeps every request and answers what the test says.
class backend {
  public:
    explicit backend(std::function<http_response(const http_request&)> answer) : answer_(std::move(answer)) {
        result<http_server> started = http_server::start("127.0.0.1:0", [this](const http_request& request) {
            {
                const std::lock_guard<std::mutex> held(mutex_);
                requests_.push_back(request);
                changed_.notify_all();
            }
            return answer_(request);
        });
        REQUIRE(started);
        server_ = std::make_unique<http_server>(std::move(*started));
    }
    explicit backend(int status, const std::string& body = "", http_headers headers = {})
        : backend([=](const http_request&) {
              return http_response{status, headers, body};
          }) {}

    std::string url() const { return "http://" + server_->address(); }
    std::vector<http_request> requests() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return requests_;
    }
    http_request last() const {
        REQUIRE(!requests().empty());
        return requests().back();
    }
    bool wait_for(const std::string& target) const {
        std::unique_lock<std::mutex> held(mutex_);
        return changed_.wait_for(held, hang_guard, [&] {
            return std::any_of(requests_.begin(), requests_.end(),
                               [&](const http_request& each) { return each.target == target; });
        });
    }

  private:
    std::function<http_response(const http_request&)> answer_;
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::vector<http_request> requests_;
    std::unique_ptr<http_server> server_;
};
}  // namespace test
