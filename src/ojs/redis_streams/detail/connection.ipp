// connection: requests to Redis with deadlines, and the thread that waits for news. hiredis parses the replies.
#pragma once

#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../base/error.hpp"
#include "../../core/cancel_token.hpp"
#include "../../net/detail/socket.ipp"

namespace ojs::detail {
namespace redis {
using words = std::vector<std::string>;  // a command and its arguments, or a reply

// The texts of a reply of any shape, in their order: numbers are text, nil is empty.
struct reply {
    words texts;
    bool is_error = false;
    std::string text() const { return texts.empty() ? std::string() : texts.front(); }
};

// Parses any bytes without recursion, which the objects of hiredis itself need.
class reply_reader {
  public:
    reply_reader() { reader_->privdata = &reply_; }
    void feed(std::string_view bytes) { redisReaderFeed(reader_.get(), bytes.data(), bytes.size()); }
    bool is_empty() const noexcept { return reader_->pos == reader_->len; }
    // False: what came is not Redis' protocol. Nothing in `out`: more bytes are needed.
    bool next(std::optional<reply>& out) {
        void* got = nullptr;
        if (redisReaderGetReply(reader_.get(), &got) != REDIS_OK) return false;
        if (got != nullptr) out = std::exchange(reply_, {});
        return true;
    }

  private:
    using task = const redisReadTask*;
    static void* add(task from, std::string text) {
        auto* const to = static_cast<reply*>(from->privdata);
        to->is_error = to->is_error || (from->parent == nullptr && from->type == REDIS_REPLY_ERROR);
        to->texts.push_back(std::move(text));
        return to;
    }

    // `auto`: the type of a length depends on the version of hiredis.
    redisReplyObjectFunctions makers_ = [] {
        redisReplyObjectFunctions out = {};
        out.createString = [](task from, char* text, std::size_t size) { return add(from, std::string(text, size)); };
        out.createInteger = [](task from, long long number) { return add(from, std::to_string(number)); };
        out.createNil = [](task from) { return add(from, std::string()); };
        out.createArray = [](task from, auto) { return from->privdata; };
        return out;
    }();
    reply reply_;
    std::shared_ptr<redisReader> reader_{redisReaderCreateWithFunctions(&makers_), redisReaderFree};
};

OJS_SHUTDOWN_INLINE error failure(errc code, std::string text) { return {code, 0, "Redis: " + std::move(text)}; }

// What Redis says, to which command and key, which the script adds, and what to do; not what it quotes of the request.
OJS_SHUTDOWN_INLINE error refusal(std::string text, std::string_view key = {}) {
    for (const char* const quotes : {" script:", ", with args"}) text.resize(min(text.find(quotes), text.size()));
    if (!text.empty() && text.back() == '.') text.pop_back();
    if (!key.empty()) text = cat({text, " (EVALSHA ", key, ")"});
    text = printable(text);
    const std::string_view reason = std::string_view(text).substr(0, text.find(" ("));
    const auto has = [&](const char* part) { return has_part(reason, part); };
    const char* const hint = has("NOAUTH")      ? "; write redis://:PASSWORD@HOST"
                             : has("CROSSSLOT") ? "; give the prefix a hash tag, as {jobs}:"
                             : has("MOVED")     ? "; connect to the node that has the stream"
                             : has("nknown")    ? "; Redis 6.2 or later is needed"
                                                : "";
    const bool is_final = *hint != '\0' || has("WRONGTYPE") || has("NOPERM") || has("can't run this command");
    return failure(is_final ? errc::rejected : errc::unavailable, text + hint);
}

// Used by one thread at a time. After an error it is of no more use.
class connection {
  public:
    connection(unique_fd socket, ref<resolver> made_by) : by(std::move(made_by)), socket_(std::move(socket)) {}

    // A readable `interrupt_fd` ends it. After an error it may have been executed. Redis' own errors are replies.
    result<reply> call(const words& command, time_point deadline, int interrupt_fd = -1) {
        std::string request = cat({"*", command.size(), "\r\n"});
        for (const std::string& word : command) append(request, {"$", word.size(), "\r\n", word, "\r\n"});
        std::string_view unsent = request;
        for (std::optional<reply> got;;) {
            if (!reader_.next(got)) return broken(errc::bad_response, "not Redis' protocol: is it another server?");
            if (got) return std::move(*got);
            if (steady_clock::now() >= deadline) return broken(errc::timed_out, "no response before the deadline");
            const bool sends = !unsent.empty();
            char buffer[16 * 1024];
            const ssize_t count = sends ? ::send(socket_.get(), unsent.data(), unsent.size(), send_flags)
                                        : ::recv(socket_.get(), buffer, sizeof buffer, 0);
            if (count > 0 && sends) unsent.remove_prefix(static_cast<std::size_t>(count));
            if (count > 0 && !sends) reader_.feed({buffer, static_cast<std::size_t>(count)});
            if (count > 0 || (count < 0 && errno == EINTR)) continue;
            if (count == 0) return broken(errc::disconnected, "the server closed the connection");
            if (errno != EAGAIN) return broken(errc::disconnected, errno_text(errno));
            if (await_ready(socket_.get(), sends ? POLLOUT : POLLIN, deadline, interrupt_fd) == io_status::interrupted)
                return broken(errc::disconnected, "the stop ended the wait for a response");
        }
    }
    // Whether Redis still listens, as far as is known.
    bool is_open() const noexcept {
        pollfd polled = {socket_.get(), POLLIN, 0};
        return socket_.get() >= 0 && reader_.is_empty() && ::poll(&polled, 1, 0) == 0;
    }

    const ref<resolver> by;
    std::string script;  // its name at Redis

  private:
    error broken(errc code, std::string text) {
        const linger reset{1, 0};  // what is unsent must not arrive later
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        socket_ = {};
        return failure(code, std::move(text));
    }
    unique_fd socket_;
    reply_reader reader_;
};
using connection_ptr = std::unique_ptr<connection>;

struct address {
    endpoint target;
    std::string username, password, database = "0";
};

OJS_SHUTDOWN_INLINE bool percent_decode(std::string_view text, std::string& out) {
    out.clear();
    while (!text.empty()) {
        std::uint64_t code = 0;
        const std::size_t size = text[0] == '%' ? 3 : 1;
        if (size > text.size() || (size == 3 && !parse_number(text.substr(1, 2), 255, code, 16))) return false;
        out += size == 3 ? static_cast<char>(code) : text[0];
        text.remove_prefix(size);
    }
    return true;
}

// The error's text never quotes the URL: it may hold a password.
OJS_SHUTDOWN_INLINE result<address> parse_address(std::string_view url) {
    const auto bad = [](const char* problem) { return failure(errc::invalid_argument, problem); };
    address out;
    if (!equals_ignore_case(url.substr(0, 6), "redis:")) return bad("the URL does not start with redis:");
    url.remove_prefix(6);
    if (!starts_with(url, "//")) {
        const result<endpoint> local = parse_unix_url(cat({"unix:", url}));
        if (!local) return bad("write redis://HOST:PORT, or redis:/PATH for a unix socket");
        out.target = *local;
        return out;
    }
    url.remove_prefix(2);
    const std::size_t at = url.rfind('@');
    if (at != std::string_view::npos) {
        std::string_view password = url.substr(0, at);
        const std::string_view username = next_part(password, ":");
        if (!percent_decode(username, out.username) || !percent_decode(password, out.password))
            return bad("the user name or password of the URL is not percent-encoded");
        url.remove_prefix(at + 1);
    }
    const std::string_view host = next_part(url, "/");
    if (!url.empty()) out.database = std::string(url);
    out.target.port = 6379;
    std::string_view port;
    std::uint64_t number = 0;
    const char* problem = split_host_port(host, out.target.host, port);
    if (problem == nullptr && !port.empty()) problem = parse_port(port, 1, out.target.port);
    if (problem == nullptr && !parse_number(out.database, 65535, number)) problem = "the database is not 0 to 65535";
    if (problem != nullptr) return bad(problem);
    out.target.name = host_port(out.target.host, out.target.port);
    return out;
}

// Idle connections, and how to make more. Thread-safe; no call waits for another.
class pool {
  public:
    pool(address to, const char* script)
        : to_(std::move(to)), script_(script), resolver_(make_ref<resolver>(to_.target)) {}

    // The second word of EVALSHA is added. `should_send` is called right before it is sent. Errors: unreachable,
    // cancelled: it was not executed; unavailable, rejected: it was refused.
    result<words> run(words command, time_point deadline, const function<bool()>& should_send, int interrupt_fd = -1) {
        result<connection_ptr> on = take(command[0] == "EVALSHA" ? deadline : deadline_after(max_delay), interrupt_fd);
        if (!on) return on.error();
        if (command[0] == "EVALSHA") command.insert(command.begin() + 1, (*on)->script);
        if (steady_clock::now() >= deadline) return failure(errc::unreachable, "not sent before the deadline");
        if (should_send && !should_send()) return error{errc::cancelled, 0, "cancelled before the command was sent"};
        result<reply> out = (*on)->call(command, deadline, interrupt_fd);
        const std::string text = out ? out->text() : "";
        const bool is_useless = !out || (out->is_error && place_in(text.substr(0, text.find(' ')), useless) >= 0);
        give_back(std::move(*on), is_useless);
        if (!out) return out.error();
        if (out->is_error) return refusal(text, has_part(text, " (") ? "" : command[3]);
        return std::move(out->texts);
    }

  private:
    static constexpr std::size_t max_idle = 16;
    static constexpr std::chrono::milliseconds max_delay{1000};  // of a stop
    static constexpr const char* useless = "READONLY MASTERDOWN LOADING CLUSTERDOWN UNBLOCKED NOSCRIPT";

    // Error: unreachable or unavailable; no request was sent.
    result<connection_ptr> take(time_point deadline, int interrupt_fd) {
        std::unique_lock<std::mutex> held(mutex_);
        while (!idle_.empty()) {
            connection_ptr out = std::move(idle_.back());
            idle_.pop_back();
            if (out->is_open()) return out;
        }
        const ref<resolver> by = resolver_;
        held.unlock();
        return connect(by, deadline, interrupt_fd);
    }
    // If the server is useless, closes its connections and looks its name up again: it may be another server now.
    void give_back(connection_ptr used, bool is_useless) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (used->by.get() != resolver_.get()) return;
        if (is_useless) idle_.clear(), resolver_ = make_ref<resolver>(to_.target);
        if (!is_useless && idle_.size() < max_idle && used->is_open()) idle_.push_back(std::move(used));
    }
    result<connection_ptr> connect(const ref<resolver>& by, time_point deadline, int interrupt_fd) {
        result<unique_fd> socket = by->connect(deadline);
        if (!socket) return failure(errc::unreachable, socket.error().text);
        auto out = std::make_unique<connection>(std::move(*socket), by);
        words log_in = {"AUTH", to_.username, to_.password};
        if (to_.username.empty()) log_in.erase(log_in.begin() + 1);
        for (const words& command : {log_in, words{"SELECT", to_.database}, words{"SCRIPT", "LOAD", script_}}) {
            if (command.back().empty()) continue;
            const result<reply> done = out->call(command, deadline, interrupt_fd);
            if (done && !done->is_error) out->script = done->text();
            if (done && !done->is_error) continue;
            give_back(std::move(out), true);
            return done ? refusal(done->text()) : error{errc::unreachable, 0, done.error().text};
        }
        return out;
    }

    const address to_;
    const char* const script_;
    std::mutex mutex_;  // of all below
    ref<resolver> resolver_;
    std::vector<connection_ptr> idle_;
};

// The thread that waits for new entries. It claims none.
class watcher {
  public:
    explicit watcher(pool& from) : pool_(from) {}
    ~watcher() { stop(); }

    // Until stop() returns. Without a thread the worker polls.
    void start(function<void()> callback) {
        stopped_ = cancel_source();
        auto body = [this, callback = std::move(callback), stop = stopped_.token()] { run(callback, stop); };
        result<ojs::detail::thread> started = ojs::detail::thread::start(std::move(body), {0, false, "ojs-redis"});
        if (started) thread_ = std::move(*started);
    }
    void stop() {
        stopped_.cancel(cancel_reason::cancelled);
        thread_.join();
    }
    // Has the keys of streams with new entries since the last call.
    std::set<std::string> take_changed_keys() {
        const std::lock_guard<std::mutex> held(mutex_);
        return std::exchange(news_, {});
    }
    // With XREAD, for entries after those that FETCHes have seen. If one was full, the worker fetches again by itself.
    void watch(words command, bool is_full) {
        const std::lock_guard<std::mutex> held(mutex_);
        command_ = std::move(command);
        is_armed_ = true;
        is_full_ = is_full;
        armed_.notify_one();
    }

  private:
    static constexpr std::chrono::milliseconds max_wait{10000}, pause{1000}, full_pause{50};

    void run(const function<void()>& callback, const cancel_token& stop) {
        const result<int> stop_fd = stop.fd();
        if (!stop_fd) return;
        for (words command; await_command(stop, command);) {
            const result<words> got = pool_.run(command, deadline_after(max_wait), nullptr, *stop_fd);
            if (!got && !stop.sleep_for(pause)) return;
            if (!got || got->size() < 2) continue;
            std::unique_lock<std::mutex> held(mutex_);
            news_.insert(got->begin(), got->end());
            held.unlock();
            command.clear();
            callback();
        }
    }
    // False: stopped. A plain XREAD from the last delivered entry returns at once if there is a later one.
    bool await_command(const cancel_token& stop, words& command) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (command.empty() && !stop.wait(armed_, lock, [this] { return is_armed_; })) return false;
        if (!exchange(is_armed_, false)) return !stop.cancelled();
        command = command_;
        const std::chrono::milliseconds delay = is_full_ ? full_pause : std::chrono::milliseconds(0);
        lock.unlock();
        return stop.sleep_for(delay);
    }

    pool& pool_;
    cancel_source stopped_;
    ojs::detail::thread thread_;
    std::mutex mutex_;  // of all below
    std::condition_variable armed_;
    bool is_armed_ = false, is_full_ = false;
    words command_;
    std::set<std::string> news_;
};
}  // namespace redis
}  // namespace ojs::detail
