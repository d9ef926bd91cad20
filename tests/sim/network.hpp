// The backend of a simulated worker, which keeps a ledger of every claim, and the network between them, which loses, delays and
// refuses. Both watch what must hold for each request.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "atomic.hpp"
#include "ojs_shutdown.hpp"
#include "system.hpp"

namespace sim {
// What goes wrong, and how often.
struct faults {
    std::uint64_t one_in = 0;                   // of the requests; 0: none
    std::uint64_t left = 0;                     // at most so many more
    nanoseconds down_from = 0, down_until = 0;  // no request arrives

    bool happens(std::uint64_t chances) {
        if (one_in == 0 || left == 0 || !dice().one_in(chances)) return false;
        return --left, true;
    }
    bool happens() { return happens(one_in); }
};

// One claim of a job by a worker.
struct claim {
    std::string worker;
    std::int64_t attempt = 1;
    bool delivered = false;   // its response arrived
    nanoseconds sent_at = 0;  // its FETCH
    bool overlaps = false;    // with an earlier one of the same worker, which lost it unnoticed
    bool reported = false;    // the response to its report arrived
    bool requeued = false;    // by requeueing it
    bool unstarted = false;   // because its handler has not begun
    int runs = 0;
    int refusals = 0;  // of its report
};

// The handler of a worker for a job.
struct handler_run {
    std::string saved;                      // its latest checkpoint
    std::string saving;                     // the one that it saves, or that one
    bool ack_is_due = false;                // it was sent, and no response has ended the claim
    bool is_refused = false;                // its report was: repeated without the checkpoint, which may be too large
    nanoseconds tried_at = 0, lost_at = 0;  // its latest report ended; the response to a heartbeat says so
};

struct ledger_job {
    enum class state { available, active, settled };

    std::string id, type;
    std::chrono::milliseconds timeout{0};  // 0: none
    state is = state::available;
    bool is_cancelled = false;
    // A repeated report has ended a later claim: the protocol names none in it. Then checks that need it are left out.
    bool is_mixed = false;
    std::int64_t attempt = 1;
    nanoseconds due = 0, lease_end = 0;  // available from then on
    bool is_given_up = false;            // its worker has said that its lease is over
    std::vector<claim> claims;
    std::map<std::string, handler_run> runs;  // by worker
    std::set<std::string> failed_by;          // workers that sent a FAIL, to which a later claim is another job

    // The latest claim that the worker knows, of any attempt or that one; null: none.
    claim* known_to(const std::string& worker, std::int64_t attempt = 0);
    // Claimed by a worker that knows it and has not reported it.
    bool is_kept_by(const std::string& worker) const;
};

class backend {
  public:
    std::map<std::string, ledger_job> jobs;
    nanoseconds lease = 0;
    std::uint64_t claims = 0;
    bool is_exact = true;      // no thread stands still, and each start succeeds
    bool says_lost = false;    // which claims are, with each heartbeat
    std::size_t job_size = 0;  // in bytes of JSON

    void expire();
    std::vector<ojs::job> hand_out(std::size_t count, const std::string& worker);
};

// The requests of one worker.
class network : public ojs::transport {
  public:
    using reporter = std::function<void(const std::string&)>;
    network(backend& to, faults& wrong, std::string worker, reporter violate);

    std::function<ojs::phase()> phase;  // of the worker
    std::function<void()> on_event;     // called when a response arrives
    bool has_started = false;           // it says so
    bool has_beaten = false;            // then FETCH may begin
    bool has_stopped = false;           // likewise; a signal has its default effect soon
    bool is_closed = false;             // the worker is gone
    nanoseconds latest_fetch = 0, reports_end = INT64_MAX;
    bool gave_up_fetch = false;           // it says that the jobs of one come back
    nanoseconds max_silence = INT64_MAX;  // between two heartbeats

    bool is_fetching() const { return !fetches_.empty(); }
    // The backend cancels a job of this worker.
    void cancel(const std::string& id);
    // It says that there may be work.
    void hint();
    // It has those of the worker.
    bool has_callbacks() const { return on_available_ || on_cancelled_; }

    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request, ojs::time_point deadline) override;
    ojs::result<ojs::settle_result> ack(const ojs::ack_request& request, ojs::time_point deadline) override;
    ojs::result<ojs::settle_result> fail(const ojs::fail_request& request, ojs::time_point deadline) override;
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override;
    ojs::result<bool> confirm_claim(const ojs::job_request& query, ojs::time_point deadline) override;
    void on_job_cancelled(ojs::function<void(const std::string&)> callback) override;
    void on_work_available(ojs::function<void()> callback) override;
    void on_phase(ojs::phase now) override;

  private:
    template <class T, class CarryOut>
    ojs::result<T> call(const std::string& name, const ojs::function<bool()>* should_send, ojs::time_point deadline,
                        const CarryOut& carry_out);
    template <class Request, class Apply>
    ojs::result<ojs::settle_result> report(const std::string& name, const Request& request, ojs::time_point deadline,
                                           const Apply& apply);
    template <class Apply>
    ojs::settle_result settle(const std::string& id, bool arrives, const Apply& apply);
    ojs::heartbeat_response extend(const ojs::heartbeat_request& request);
    void check_request(const std::string& name);
    std::shared_ptr<void> note_beat(const std::string& name, nanoseconds left);

    backend& backend_;
    faults& faults_;
    const std::string worker_;
    const reporter violate_;
    nanoseconds latest_beat_ = 0;
    bool last_beat_ended_ = false, has_bad_token_ = false;  // the latest
    std::multiset<nanoseconds> fetches_;                    // the deadlines of those in flight
    int beats_ = 0;                                         // in flight
    nanoseconds beats_since_ = 0;                           // some are, with short gaps at most
    nanoseconds beats_until_ = -second;
    std::mutex calling_back_;  // while a callback is called
    ojs::function<void()> on_available_;
    ojs::function<void(const std::string&)> on_cancelled_;
};

// Up to `limit`, mostly short.
nanoseconds some_time(nanoseconds limit);
}  // namespace sim
