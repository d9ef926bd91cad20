// A subject for an OJS server, by HTTP: http_transport's.
#pragma once

#include <ojs_client.hpp>
#include <stdexcept>

#include "lone_worker.hpp"

namespace transport_contract {
class http_subject : public subject {
  public:
    // `worker_url`: of the workers' requests, which may be lost on their way.
    http_subject(const std::string& url, std::string worker_url, const std::string& token = "")
        : worker_url_(std::move(worker_url)), token_(token), client_(value_of(ojs::client::create(options(url)))) {
        can_.requeue_spares_attempt = can_.jobs_outlive_worker = can_.first_in_first_out = can_.holds_nul = true;
        can_.passes_checkpoints = can_.knows_holder = can_.counts_lost_runs = true;
        can_.largest_args = 200 * 1024;
    }
    traits can() const override { return can_; }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) override {
        ojs::http_client_options connection = options(worker_url_).http;
        connection.headers.push_back({"X-OJS-Worker-ID", as.worker_id});
        ojs::http_client http = value_of(ojs::make_backend_client(worker_url_, std::move(connection)));
        return share(ojs::result<ojs::transport_ref>(ojs::make_http_transport(std::move(http))));
    }
    std::string push(const new_job& what) override {
        ojs::enqueue_request job;
        job.type = what.type;
        job.args_json = what.args_json;
        job.queue = what.queue;
        job.retry = {what.max_attempts, std::chrono::seconds(1), {}};
        return value_of(client_.enqueue(job, {soon(), {}})).job.id;
    }
    job_state state_of(const std::string& id) override {
        const std::string state = value_of(client_.get(id, {soon(), {}})).state;
        if (state == "active") return job_state::running;
        if (state == "completed") return job_state::completed;
        return state == "discarded" ? job_state::discarded : job_state::waiting;
    }

  protected:
    traits can_;

  private:
    template <class Value>
    static Value value_of(const ojs::result<Value>& got) {
        if (!got) throw std::runtime_error(got.error().text);
        return *got;
    }
    ojs::client_options options(const std::string& url) const {
        ojs::client_options out;
        out.url = url;
        out.http.bearer_token = token_;
        return out;
    }
    const std::string worker_url_, token_;
    const ojs::client client_;
};
}  // namespace transport_contract
