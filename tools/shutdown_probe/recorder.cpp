// recorder: its sockets, its bookkeeping, its faults.
#include "recorder.hpp"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <picojson.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ojs_shutdown.hpp"
#include "schemas.hpp"

namespace probe {
namespace {
constexpr std::size_t largest_request = 16 * 1024 * 1024;

bool send_text(int fd, const std::string& text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
        const ssize_t n = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        sent += static_cast<std::size_t>(n);
    }
    return true;
}

bool receive_more(int fd, std::string& buffer) {
    char chunk[16 * 1024];
    ssize_t n = -1;
    do {
        n = ::recv(fd, chunk, sizeof chunk, 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0 || buffer.size() > largest_request) return false;
    buffer.append(chunk, static_cast<std::size_t>(n));
    return true;
}

std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

// Printable, and at most as long as a line of a report.
std::string as_line(const std::string& text) {
    constexpr std::size_t max_length = 160;
    std::string out = text.substr(0, max_length);
    for (char& c : out) c = c < ' ' || c > '~' ? ' ' : c;
    return text.size() > max_length ? out + "..." : out;
}

// A header's value in a head of lower case; empty if it is not there.
std::string header(const std::string& head, const std::string& name) {
    const std::size_t at = head.find("\r\n" + name + ":");
    if (at == std::string::npos) return "";
    const std::size_t begin = head.find_first_not_of(" \t", at + name.size() + 3);
    return head.substr(begin, head.find("\r\n", begin) - begin);
}

bool read_exactly(int fd, std::string& buffer, std::size_t size, std::string& out) {
    while (buffer.size() < size) {
        if (!receive_more(fd, buffer)) return false;
    }
    out.append(buffer, 0, size);
    buffer.erase(0, size);
    return true;
}

bool read_until(int fd, std::string& buffer, const char* end, std::string& out) {
    std::size_t at = 0;
    while ((at = buffer.find(end)) == std::string::npos) {
        if (!receive_more(fd, buffer)) return false;
    }
    return read_exactly(fd, buffer, at + std::strlen(end), out);
}

bool read_chunked(int fd, std::string& buffer, std::string& out) {
    for (;;) {
        std::string line;
        if (!read_until(fd, buffer, "\r\n", line)) return false;
        const unsigned long size = std::strtoul(line.c_str(), nullptr, 16);
        if (size > largest_request) return false;
        if (size == 0) break;
        std::string end;
        if (!read_exactly(fd, buffer, size, out) || !read_exactly(fd, buffer, 2, end)) return false;
    }
    std::string trailer;
    do {
        trailer.clear();
        if (!read_until(fd, buffer, "\r\n", trailer)) return false;
    } while (trailer != "\r\n");
    return true;
}

// ---- JSON ----

const picojson::value& member(const picojson::value& object, const char* key) {
    static const picojson::value absent;
    if (!object.is<picojson::object>()) return absent;
    const picojson::object& members = object.get<picojson::object>();
    const auto found = members.find(key);
    return found == members.end() ? absent : found->second;
}

std::string text_of(const picojson::value& value) { return value.is<std::string>() ? value.get<std::string>() : ""; }

// Null where it is no JSON.
picojson::value parsed(const std::string& body) {
    return ojs::json_view(body).as<picojson::value>().value_or(picojson::value());
}

kind kind_of(const std::string& target) {
    const std::string path = target.substr(0, target.find('?'));
    const auto ends_with = [&](const std::string& tail) {
        return path.size() >= tail.size() && path.compare(path.size() - tail.size(), tail.size(), tail) == 0;
    };
    if (ends_with("/workers/fetch")) return kind::fetch;
    if (ends_with("/workers/ack")) return kind::ack;
    if (ends_with("/workers/nack")) return kind::fail;
    if (ends_with("/workers/heartbeat")) return kind::beat;
    return kind::other;
}

// `active_jobs` is a list of ids or their number, `active_job_ids` always a list.
void read_active(const picojson::value& body, request& out) {
    for (const char* key : {"active_jobs", "active_job_ids", "active_job_count"}) {
        const picojson::value& found = member(body, key);
        if (found.is<double>()) out.active_count = static_cast<std::int64_t>(found.get<double>());
        if (!found.is<picojson::array>()) continue;
        for (const picojson::value& each : found.get<picojson::array>()) {
            const std::string id = text_of(each);
            if (std::find(out.active.begin(), out.active.end(), id) == out.active.end()) out.active.push_back(id);
        }
        out.active_count = std::max(out.active_count, static_cast<std::int64_t>(out.active.size()));
    }
}

void read_error(const picojson::value& body, request& out) {
    const picojson::value& error = member(body, "error");
    const std::string message = text_of(member(error, "message"));
    for (const std::string& name :
         {text_of(member(error, "code")), text_of(member(error, "type")),
          text_of(member(member(error, "details"), "error_class")), message.substr(0, message.find(':'))}) {
        if (!name.empty()) out.errors.push_back(name);
    }
    const picojson::value& retryable = member(error, "retryable");
    const picojson::value& requeue = member(body, "requeue");
    out.retryable = !retryable.is<bool>() || retryable.get<bool>();
    out.requeue = requeue.is<bool>() && requeue.get<bool>();
}

request describe(const std::string& method, const std::string& target, const std::string& text) {
    request out;
    out.at = clock::now();
    out.route = method + " " + target;
    out.body = as_line(text);
    out.what = method == "POST" ? kind_of(target) : kind::other;
    const picojson::value body = parsed(text);
    out.valid = body.is<picojson::object>();
    out.state = text_of(member(body, "state"));
    out.job = text_of(member(body, "job_id"));
    const picojson::value& count = member(body, "count");
    if (count.is<double>()) out.count = static_cast<std::int64_t>(count.get<double>());
    read_active(body, out);
    read_error(body, out);
    return out;
}
}  // namespace

// ---- sockets ----

recorder::~recorder() { go_away(); }

bool recorder::start(std::string& why) { return open_listener(why); }

bool recorder::open_listener(std::string& why) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    where.sin_port = htons(static_cast<std::uint16_t>(port_));
    socklen_t size = sizeof where;
    if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd, reinterpret_cast<const sockaddr*>(&where), size) != 0 || ::listen(fd, 128) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&where), &size) != 0) {
        why = std::string("cannot listen on a loopback port: ") + std::strerror(errno);
        if (fd >= 0) ::close(fd);
        return false;
    }
    port_ = ntohs(where.sin_port);
    listener_ = fd;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        ending_ = false;
    }
    acceptor_ = std::thread([this, fd] { accept_all(fd); });
    return true;
}

void recorder::go_away() {
    if (listener_ < 0) return;
    ::shutdown(listener_, SHUT_RDWR);  // wakes the acceptor
    acceptor_.join();
    ::close(listener_);
    listener_ = -1;
    std::list<connection> cut;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        ending_ = true;
        for (connection& each : connections_) ::shutdown(each.fd, SHUT_RDWR);
        cut.swap(connections_);
        changed_.notify_all();
    }
    for (connection& each : cut) {
        each.runner.join();
        ::close(each.fd);
    }
}

bool recorder::come_back() {
    std::string why;
    return open_listener(why);
}

void recorder::accept_all(int listener) {
    for (;;) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) {
            admit(fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            std::this_thread::sleep_for(milliseconds(10));
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

void recorder::admit(int fd) {
    const int on = 1;
    const timeval limit{2, 0};
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    std::list<connection> ended;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        for (auto each = connections_.begin(); each != connections_.end();) {
            const auto next = std::next(each);
            if (each->done) ended.splice(ended.end(), connections_, each);
            each = next;
        }
        connections_.emplace_back();
        connection& self = connections_.back();
        self.fd = fd;
        self.runner = std::thread([this, &self] { serve(self); });
    }
    for (connection& each : ended) {
        each.runner.join();
        ::close(each.fd);
    }
}

void recorder::serve(connection& self) {
    std::string buffer;
    message asked;
    while (read_message(self.fd, buffer, asked)) {
        const reply made = handle(asked);
        if (made.drop) break;
        if (!made.raw.text.empty()) {
            bool sent = send_text(self.fd, made.raw.text);
            for (std::size_t i = 0; i < made.raw.times && sent; ++i) sent = send_text(self.fd, made.raw.more);
            break;
        }
        std::string text =
            "HTTP/1.1 " + std::to_string(made.status) + (made.status < 300 ? " OK" : " Refused") +
            "\r\nContent-Type: application/openjobspec+json\r\nContent-Length: " + std::to_string(made.body.size()) +
            (asked.closes ? "\r\nConnection: close" : "") + "\r\n\r\n" + made.body;
        if (!send_text(self.fd, text) || asked.closes) break;
    }
    // The joining thread closes the descriptor, so that it is not reused before.
    ::shutdown(self.fd, SHUT_RDWR);
    const std::lock_guard<std::mutex> held(mutex_);
    self.done = true;
}

bool recorder::read_message(int fd, std::string& buffer, message& out) {
    std::string head;
    if (!read_until(fd, buffer, "\r\n\r\n", head)) return false;
    const std::size_t method = head.find(' ');
    const std::size_t target = head.find(' ', method + 1);
    if (method == std::string::npos || target == std::string::npos) return false;
    out.method = head.substr(0, method);
    out.target = head.substr(method + 1, target - method - 1);
    out.body.clear();
    const std::string fields = lower(head);
    out.closes = header(fields, "connection") == "close" || fields.find(" http/1.0\r\n") != std::string::npos;
    if (header(fields, "expect") == "100-continue" && !send_text(fd, "HTTP/1.1 100 Continue\r\n\r\n")) return false;
    if (header(fields, "transfer-encoding") == "chunked") return read_chunked(fd, buffer, out.body);
    const unsigned long length = std::strtoul(header(fields, "content-length").c_str(), nullptr, 10);
    return length <= largest_request && read_exactly(fd, buffer, length, out.body);
}

// ---- control by the scenario ----

std::vector<std::string> recorder::add_jobs(const std::string& type, std::int64_t ms, std::size_t count) {
    const std::lock_guard<std::mutex> held(mutex_);
    std::vector<std::string> ids;
    for (std::size_t i = 0; i < count; ++i) {
        char id[48];  // a UUIDv7 in shape, as jobs of OJS have
        std::snprintf(id, sizeof id, "0197b0be-0000-7000-8000-%012x", static_cast<unsigned>(jobs_.size() + 1));
        ids.emplace_back(id);
        jobs_[id] = false;
        queue_.emplace_back(id, std::string("{\"specversion\":\"1.0\",\"id\":\"") + id + "\",\"type\":\"" + type +
                                    "\",\"queue\":\"default\",\"args\":[" + std::to_string(ms) +
                                    "],\"state\":\"active\",\"attempt\":1,\"max_attempts\":1,"
                                    "\"created_at\":\"2025-01-01T00:00:00Z\"}");
    }
    return ids;
}

std::vector<request> recorder::requests() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return requests_;
}

bool recorder::wait(const condition& holds, milliseconds limit) {
    std::unique_lock<std::mutex> held(mutex_);
    return changed_.wait_for(held, limit, [&] { return holds(requests_); });
}

void recorder::hold(kind what) {
    const std::lock_guard<std::mutex> held(mutex_);
    held_[what] = true;
}

void recorder::release(kind what) {
    const std::lock_guard<std::mutex> held(mutex_);
    held_[what] = false;
    changed_.notify_all();
}

bool recorder::wait_held(kind what, std::size_t count, milliseconds limit) {
    std::unique_lock<std::mutex> held(mutex_);
    return changed_.wait_for(held, limit, [&] { return waiting_[what] >= count; });
}

void recorder::lose(kind what, int answers) {
    const std::lock_guard<std::mutex> held(mutex_);
    to_lose_[what] = answers;
}

void recorder::answer_raw(kind what, const std::vector<raw_answer>& all) {
    const std::lock_guard<std::mutex> held(mutex_);
    raw_[what].assign(all.begin(), all.end());
}

bool recorder::raw_left() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return std::any_of(raw_.begin(), raw_.end(), [](const auto& each) { return !each.second.empty(); });
}

void recorder::say(std::string members) {
    const std::lock_guard<std::mutex> held(mutex_);
    say_ = std::move(members);
}

void recorder::be_strict() {
    const std::lock_guard<std::mutex> held(mutex_);
    strict_ = true;
}

void recorder::expire_leases() {
    const std::lock_guard<std::mutex> held(mutex_);
    expired_ = true;
}

void recorder::cancel_job(const std::string& id) {
    const std::lock_guard<std::mutex> held(mutex_);
    jobs_[id] = true;
    cancelled_.insert(id);
}

// ---- one request ----

recorder::reply recorder::handle(const message& asked) {
    request about = describe(asked.method, asked.target, asked.body);
    const kind what = about.what;
    std::unique_lock<std::mutex> held(mutex_);
    if (strict_) about.refused = schemas::fault_of_request(asked.target, parsed(asked.body));
    const std::size_t index = requests_.size();
    requests_.push_back(about);
    if (held_[what]) {
        ++waiting_[what];
        changed_.notify_all();
        changed_.wait_for(held, max_hold_time, [&] { return !held_[what] || ending_; });
        --waiting_[what];
    }
    request& kept = requests_[index];
    reply out;
    out.drop = ending_;
    if (!ending_) out = answer(kept);
    if (!raw_[what].empty() && !std::exchange(raw_before_[what], !raw_before_[what])) {
        out.raw = raw_[what].front();
        raw_[what].pop_front();
    }
    if (to_lose_[what] > 0) {
        --to_lose_[what];
        out.drop = true;
        kept.lost = true;
    }
    const bool raw = !out.raw.text.empty();
    kept.status = out.drop || raw ? 0 : out.status;
    kept.answer = out.drop ? "none: the connection was cut" : as_line(raw ? out.raw.text : out.body);
    kept.answered = clock::now();
    changed_.notify_all();
    return out;
}

recorder::reply recorder::answer(request& about) {
    if (!about.refused.empty()) {
        return {400, "{\"error\":{\"code\":\"invalid_payload\",\"message\":\"" + about.refused + "\"}}", {}, false};
    }
    if (about.what != kind::other && !about.valid) return {400, "{}", {}, false};
    switch (about.what) {
        case kind::fetch: return answer_fetch(about);
        case kind::ack:
        case kind::fail: return answer_settlement(about);
        case kind::beat: return answer_beat(about);
        case kind::other: break;
    }
    for (const std::string& id : cancelled_) {
        if (about.route == "GET /ojs/v1/jobs/" + id)
            return {200, "{\"job\":{\"id\":\"" + id + "\",\"state\":\"cancelled\"}}", {}, false};
    }
    for (const auto& [id, settled] : jobs_) {
        if (expired_ && !settled && about.route == "GET /ojs/v1/jobs/" + id)
            return {200, "{\"job\":{\"id\":\"" + id + "\",\"state\":\"active\",\"worker_id\":\"another\"}}", {}, false};
    }
    const bool health = about.route.find("/health") != std::string::npos;
    if (health) return {200, "{\"status\":\"ok\"}", {}, false};
    return {404, "{\"error\":{\"code\":\"not_found\"}}", {}, false};
}

recorder::reply recorder::answer_fetch(request& about) {
    reply out;
    if (!raw_[kind::fetch].empty() && !raw_before_[kind::fetch]) return out;  // the jobs would be lost with it
    std::string list;
    while (!queue_.empty() && static_cast<std::int64_t>(about.given.size()) < about.count) {
        about.given.push_back(queue_.front().first);
        list += (list.empty() ? "" : ",") + queue_.front().second;
        queue_.pop_front();
    }
    out.body = "{\"jobs\":[" + list + "]}";
    return out;
}

recorder::reply recorder::answer_settlement(request& about) {
    const auto job = jobs_.find(about.job);
    if (job == jobs_.end()) return {404, "{\"error\":{\"code\":\"not_found\"}}", {}, false};
    if (job->second) return {409, "{\"error\":{\"code\":\"conflict\"}}", {}, false};
    job->second = about.settles = true;
    const char* state = about.what == kind::ack ? "completed"
                        : about.requeue         ? "available"
                        : about.retryable       ? "retryable"
                                                : "discarded";
    return {200, "{\"acknowledged\":true,\"id\":\"" + about.job + "\",\"state\":\"" + state + "\"}", {}, false};
}

recorder::reply recorder::answer_beat(const request& about) const {
    std::string extended;
    for (const std::string& id : about.active) {
        const auto job = jobs_.find(id);
        if (!expired_ && job != jobs_.end() && !job->second) extended += (extended.empty() ? "\"" : ",\"") + id + "\"";
    }
    return {
        200, "{" + say_ + ",\"jobs_extended\":[" + extended + "],\"server_time\":\"2025-01-01T00:00:00Z\"}", {}, false};
}
}  // namespace probe
