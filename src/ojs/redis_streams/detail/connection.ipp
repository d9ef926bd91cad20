// connection: requests to Redis with deadlines. hiredis parses the replies; the sockets are the library's.
#pragma once

#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../../net/detail/socket.ipp"

namespace ojs::detail {
namespace redis {
struct deleter {
    void operator()(redisReader* target) const noexcept { redisReaderFree(target); }
};
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
    reply_reader() : reader_(redisReaderCreateWithFunctions(&makers_)) {
        if (reader_) reader_->privdata = &reply_;
    }
    void feed(std::string_view bytes) {
        if (reader_) redisReaderFeed(reader_.get(), bytes.data(), bytes.size());
    }
    // False: what came is not Redis' protocol. Nothing in `out`: more bytes are needed.
    bool next(std::optional<reply>& out) {
        void* got = nullptr;
        if (!reader_ || redisReaderGetReply(reader_.get(), &got) != REDIS_OK) return false;
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
    std::unique_ptr<redisReader, deleter> reader_;
};

OJS_SHUTDOWN_INLINE error failure(errc code, std::string text) { return {code, 0, "Redis: " + std::move(text)}; }

// What Redis says, which operators know, to which command and key, and what to do about it; not what it quotes of the
// request. A script has added the command and the key.
OJS_SHUTDOWN_INLINE error refusal(std::string text, std::string_view key = {}) {
    static constexpr const char* hints[][2] = {
        {"NOAUTH", "; write redis://:PASSWORD@HOST"},
        {"CROSSSLOT", "; write a hash tag into the prefix"},
        {"MOVED", "; connect to the node that has the stream"},
        {"WRONGTYPE", ""},
        {"NOPERM", ""},
        {"can't run this command", ""},
        {"nknown", "; Redis 6.2 or later is needed"},
    };
    for (const char* const quotes : {" script:", ", with args"}) text.resize(min(text.find(quotes), text.size()));
    if (!text.empty() && text.back() == '.') text.pop_back();
    if (!key.empty()) text = cat({text, " (EVALSHA ", key, ")"});
    text = printable(text);
    const std::string_view reason = std::string_view(text).substr(0, text.find(" ("));
    for (const auto& [part, hint] : hints) {
        if (has_part(reason, part)) return failure(errc::bad_response, text + hint);
    }
    return failure(errc::unavailable, text);
}

// The request as Redis reads it.
OJS_SHUTDOWN_INLINE std::string encode(const words& command) {
    std::string out = cat({"*", command.size(), "\r\n"});
    for (const std::string& word : command) append(out, {"$", word.size(), "\r\n", word, "\r\n"});
    return out;
}

// Used by one thread at a time. After an error it is of no more use.
class connection {
  public:
    connection(unique_fd socket, ref<resolver> by) : socket_(std::move(socket)), by_(std::move(by)) {}

    // A readable `interrupt_fd` ends it. After an error it may have been executed. Redis' own errors are replies.
    result<reply> call(const words& command, time_point deadline, int interrupt_fd = -1) {
        const std::string request = encode(command);
        std::string_view unsent = request;
        for (std::optional<reply> got;;) {
            if (!reader_.next(got)) return broken(errc::bad_response, "what came is not Redis' protocol");
            if (got) return std::move(*got);
            const bool sends = !unsent.empty();
            const ssize_t count = sends ? ::send(socket_.get(), unsent.data(), unsent.size(), send_flags) : receive();
            if (count > 0 && sends) unsent.remove_prefix(static_cast<std::size_t>(count));
            if (count > 0 || (count < 0 && errno == EINTR)) continue;
            if (count == 0) return broken(errc::disconnected, "the connection was closed");
            if (errno != EAGAIN) return broken(errc::disconnected, errno_text(errno));
            const io_status ready = await_ready(socket_.get(), sends ? POLLOUT : POLLIN, deadline, interrupt_fd);
            if (ready == io_status::timed_out) return broken(errc::timed_out, "no response in time");
            if (ready != io_status::ok) return broken(errc::disconnected, "interrupted");
        }
    }
    // Whether Redis still listens, as far as is known.
    bool is_open() const noexcept {
        pollfd polled = {socket_.get(), POLLIN, 0};
        return !is_broken_ && ::poll(&polled, 1, 0) == 0;
    }
    bool is_by(const ref<resolver>& other) const noexcept { return by_.get() == other.get(); }

  private:
    error broken(errc code, std::string text) {
        is_broken_ = true;
        const linger reset{1, 0};  // what is unsent must not arrive later
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        return failure(code, std::move(text));
    }
    ssize_t receive() {
        char buffer[16 * 1024];
        const ssize_t count = ::recv(socket_.get(), buffer, sizeof buffer, 0);
        if (count > 0) reader_.feed({buffer, static_cast<std::size_t>(count)});
        return count;
    }

    unique_fd socket_;
    const ref<resolver> by_;
    reply_reader reader_;
    bool is_broken_ = false;
};
using connection_ptr = std::unique_ptr<connection>;

struct address {
    endpoint target;
    std::string username;
    std::string password;
    std::string database = "0";
};

OJS_SHUTDOWN_INLINE bool percent_decode(std::string_view text, std::string& out) {
    out.clear();
    for (std::size_t i = 0; i < text.size(); ++i) {
        std::uint64_t code = 0;
        const bool is_encoded = text[i] == '%';
        if (is_encoded && (i + 2 >= text.size() || !parse_number(text.substr(i + 1, 2), 255, code, 16))) return false;
        out += is_encoded ? static_cast<char>(code) : text[i];
        if (is_encoded) i += 2;
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
        if (!local) return bad("redis://HOST:PORT or redis:/PATH of a unix socket is expected");
        out.target = *local;
        return out;
    }
    url.remove_prefix(2);
    const std::size_t at = url.rfind('@');
    if (at != std::string_view::npos) {
        const std::string_view user = url.substr(0, at);
        const std::size_t colon = detail::min(user.find(':'), user.size());
        if (!percent_decode(user.substr(0, colon), out.username) ||
            !percent_decode(user.substr(detail::min(colon + 1, user.size())), out.password))
            return bad("the user name or the password is not percent-encoded");
        url.remove_prefix(at + 1);
    }
    const std::size_t slash = detail::min(url.find('/'), url.size());
    const std::string_view database = url.substr(detail::min(slash + 1, url.size()));
    if (!database.empty()) out.database = std::string(database);
    out.target.port = 6379;
    std::string_view port;
    std::uint64_t number = 0;
    const char* problem = split_host_port(url.substr(0, slash), out.target.host, port);
    if (problem == nullptr && !port.empty()) problem = parse_port(port, 1, out.target.port);
    if (problem == nullptr && !parse_number(out.database, 65535, number)) problem = "the database is no number";
    if (problem != nullptr) return bad(problem);
    out.target.name = host_port(out.target.host, out.target.port);
    return out;
}

// Idle connections, and how to make more. Thread-safe; no call waits for another.
class pool {
  public:
    explicit pool(address to) : to_(std::move(to)), resolver_(make_ref<resolver>(to_.target)) {}

    // Error: unreachable or unavailable; no request was sent.
    result<connection_ptr> take(time_point deadline) {
        for (;;) {
            connection_ptr out;
            {
                const std::lock_guard<std::mutex> held(mutex_);
                if (idle_.empty()) break;
                out = std::move(idle_.back());
                idle_.pop_back();
            }
            if (is_usable(*out)) return out;
        }
        return connect(deadline);
    }
    void give_back(connection_ptr used) {
        const bool is_kept = is_usable(*used);
        const std::lock_guard<std::mutex> held(mutex_);
        if (idle_.size() < max_idle && is_kept) idle_.push_back(std::move(used));
    }
    result<connection_ptr> connect(time_point deadline, int interrupt_fd = -1) {
        const ref<resolver> by = current_resolver();
        result<unique_fd> socket = by->connect(deadline);
        if (!socket) return failure(errc::unreachable, socket.error().text);
        auto out = std::make_unique<connection>(std::move(*socket), by);
        words log_in = {"AUTH", to_.username, to_.password};
        if (to_.username.empty()) log_in.erase(log_in.begin() + 1);
        for (const words& command : {log_in, words{"SELECT", to_.database}}) {
            if (command.back().empty()) continue;
            const result<reply> done = out->call(command, deadline, interrupt_fd);
            if (!done) leave(*out);
            if (!done) return error{errc::unreachable, 0, done.error().text};
            if (done->is_error) return refusal(done->text());
        }
        return out;
    }
    // No connection to this server is used again, and the name is looked up anew: it may lead to another server now.
    void leave(const connection& useless) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (useless.is_by(resolver_)) resolver_ = make_ref<resolver>(to_.target);
    }
    bool is_usable(const connection& used) { return used.is_open() && used.is_by(current_resolver()); }

  private:
    static constexpr std::size_t max_idle = 16;
    ref<resolver> current_resolver() {
        const std::lock_guard<std::mutex> held(mutex_);
        return resolver_;
    }

    const address to_;
    std::mutex mutex_;  // of all below
    ref<resolver> resolver_;
    std::vector<connection_ptr> idle_;
};

// A Lua script, which Redis keeps under its hash.
class script {
  public:
    explicit script(std::string source) : source_(std::move(source)) {}

    // `arguments`: the number of keys, the keys, others. `should_send` is called right before it is sent. Errors:
    // unreachable, cancelled: it was not executed; unavailable, bad_response: it was refused.
    result<words> run(pool& from, words arguments, time_point deadline, const function<bool()>& should_send) {
        result<connection_ptr> on = from.take(deadline);
        if (!on) return on.error();
        arguments.insert(arguments.begin(), {"EVALSHA", hash()});
        for (;;) {
            if (steady_clock::now() >= deadline) return failure(errc::unreachable, "the deadline has passed");
            if (should_send && !should_send()) return error{errc::cancelled, 0, "the request is not wanted"};
            result<reply> out = (*on)->call(arguments, deadline);
            const std::string text = out ? out->text() : "";
            if (!out || place_in(text.substr(0, text.find(' ')), "READONLY MASTERDOWN LOADING CLUSTERDOWN") >= 0)
                from.leave(**on);
            if (!out) return out.error();
            if (!out->is_error || !starts_with(text, "NOSCRIPT")) {
                from.give_back(std::move(*on));
                if (out->is_error) return refusal(text, has_part(text, " (") ? "" : arguments[3]);
                return std::move(out->texts);
            }
            // The first time, and after SCRIPT FLUSH or a restart.
            const result<reply> loaded = (*on)->call({"SCRIPT", "LOAD", source_}, deadline);
            if (!loaded) return error{errc::unreachable, 0, loaded.error().text};
            if (loaded->is_error) return refusal(loaded->text());
            arguments[1] = hash(loaded->text());
        }
    }

  private:
    std::string hash(const std::string& loaded = {}) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (!loaded.empty()) hash_ = loaded;
        return hash_;
    }

    const std::string source_;
    std::mutex mutex_;
    std::string hash_ = "unknown";
};
}  // namespace redis
}  // namespace ojs::detail
