// memory_transport: a queue in this process, for tests and experiments.
#pragma once

#include "../base/detail/sync.hpp"
#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// A job and its state in the queue.
struct memory_job {
    ojs::job job;                     ///< its meta_json has the checkpoint
    std::string state = "available";  ///< available, active, completed, discarded
    std::string result_json;          ///< of the ACK
    job_error error;                  ///< of the last FAIL
    int settlements = 0;              ///< ACKs and FAILs accepted, over all attempts
};

namespace detail {
struct stored_job : ref_counted {
    memory_job job;  // without its state
};
// Small, as each operation scans all of them.
struct memory_entry {
    std::string_view state = "available";
    std::uint64_t settled = 0;  // how many jobs were settled before it, and it; 0: it is not
    ref<stored_job> stored;
    memory_job& job() const noexcept { return stored->job; }
};
}  // namespace detail

/// A queue in this process, for tests. Every function is thread-safe.
class memory_transport : public transport {
  public:
    /// Keeps the last `max_settled` completed or discarded jobs for jobs(); older ones are removed.
    explicit memory_transport(std::size_t max_settled = 10000);
    ~memory_transport() override;

    /// Adds a job and returns its id.
    std::string push(std::string type, std::string args_json = "[]", std::int64_t max_attempts = 3,
                     std::string queue = "default");
    /// The jobs kept, in the order of push().
    std::vector<memory_job> jobs() const;

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override;
    result<settle_result> ack(const ack_request& request, time_point deadline) override;
    result<settle_result> fail(const fail_request& request, time_point deadline) override;
    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override;

    /// push() calls it, with a lock held: it must not call this transport.
    void on_work_available(function<void()> callback) override;

  private:
    detail::memory_entry* find_active(const std::string& id);
    template <class Change>
    result<settle_result> change_active(const std::string& id, Change change);
    void settle(detail::memory_entry& done, std::string_view state);

    const std::size_t max_settled_;
    mutable detail::mutex guard_;  // of all below; the caller of find_active() and settle() holds it
    function<void()> on_available_;
    std::uint64_t pushed_ = 0;
    std::uint64_t settled_ = 0;
    detail::array<detail::memory_entry> entries_;  // in the order of push()
};

/// The scheme memory: for worker_options::transports: an empty queue. To push jobs, pass a memory_transport to the worker.
transport_scheme memory();
}  // namespace v0_1_0
}  // namespace ojs
