// recorder: a backend that hands out jobs, misbehaves on demand, and records every request with its time.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace probe {
using clock = std::chrono::steady_clock;
using moment = clock::time_point;
using std::chrono::milliseconds;

enum class kind { fetch, ack, fail, beat, other };

// One request as received. Fields that the worker did not send are empty.
struct request {
    kind what = kind::other;
    moment at;                        // read to its last byte
    moment answered = moment::max();  // right before the answer was sent
    std::string route;
    std::string body;                 // as one line, shortened
    bool valid = false;               // the body is a JSON object
    std::string state;                // BEAT
    std::vector<std::string> active;  // BEAT: ids, under either name
    std::int64_t active_count = -1;   // BEAT: -1: not sent
    std::int64_t count = 1;           // FETCH: jobs requested
    std::vector<std::string> given;   // FETCH: jobs returned
    std::string job;                  // ACK, FAIL
    std::vector<std::string> errors;  // FAIL: code, type, details.error_class, what the message begins with
    bool retryable = true;            // FAIL
    bool requeue = false;             // FAIL
    int status = 0;                   // answered; 0: nothing, or bytes that are no HTTP
    std::string answer;               // its body, shortened, or what came instead of it
    bool settles = false;             // ACK, FAIL: this one decided the job
    bool lost = false;                // processed, and the answer withheld
    std::string refused;              // by the strict backend: why
};

// Bytes to send instead of a response: `text` once, then `more` `times` times; then the connection is closed.
struct raw_answer {
    std::string text;
    std::string more;
    std::size_t times = 0;
};

// A server on a free loopback port, one thread a connection. All members are thread-safe.
class recorder {
  public:
    recorder() = default;
    ~recorder();
    recorder(const recorder&) = delete;
    recorder& operator=(const recorder&) = delete;

    bool start(std::string& why);
    std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

    // Ids of `count` new jobs with one argument, given out in this order.
    std::vector<std::string> add_jobs(const std::string& type, std::int64_t ms, std::size_t count = 1);
    std::vector<request> requests() const;
    // Waits until `holds(requests)`, checked after every request and response; false after `limit`.
    using condition = std::function<bool(const std::vector<request>&)>;
    bool wait(const condition& holds, milliseconds limit);

    void hold(kind what);  // answers wait for release(), 30 s at most
    void release(kind what);
    bool wait_held(kind what, std::size_t count, milliseconds limit);
    void lose(kind what, int answers);                               // process, then cut the connection
    void answer_raw(kind what, const std::vector<raw_answer>& all);  // in turn, a good answer after each
    bool raw_left() const;
    void say(std::string members);           // further members of the answers to BEAT, such as "state":"quiet"
    void be_strict();                        // 400 to bodies with anything that the published schemas do not have
    void expire_leases();                    // BEATs no longer extend anything, INFO names another worker
    void cancel_job(const std::string& id);  // BEATs leave it out, INFO reports it, ACK and FAIL are answered 409
    void go_away();                          // refuse connections, cut those there are
    bool come_back();
    static constexpr milliseconds max_hold_time{30000};

  private:
    struct connection {
        int fd = -1;
        bool done = false;
        std::thread runner;
    };
    struct message {
        std::string method;
        std::string target;
        std::string body;
        bool closes = false;
    };
    struct reply {
        int status = 200;
        std::string body = "{}";
        raw_answer raw;  // if its text is not empty
        bool drop = false;
    };

    bool open_listener(std::string& why);
    void accept_all(int listener);
    void admit(int fd);
    void serve(connection& self);
    bool read_message(int fd, std::string& buffer, message& out);
    reply handle(const message& asked);
    reply answer(request& about);
    reply answer_fetch(request& about);
    reply answer_settlement(request& about);
    reply answer_beat(const request& about) const;

    int port_ = 0;
    int listener_ = -1;
    std::thread acceptor_;

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool ending_ = false;  // connections are to end
    std::list<connection> connections_;
    std::vector<request> requests_;
    std::map<std::string, bool> jobs_;  // settled, or cancelled?
    std::set<std::string> cancelled_;
    std::deque<std::pair<std::string, std::string>> queue_;  // id and JSON
    std::map<kind, bool> held_;
    std::map<kind, std::size_t> waiting_;
    std::map<kind, int> to_lose_;
    std::map<kind, std::deque<raw_answer>> raw_;
    std::map<kind, bool> raw_before_;
    std::string say_ = "\"state\":\"running\"";
    bool strict_ = false;
    bool expired_ = false;
};
}  // namespace probe
