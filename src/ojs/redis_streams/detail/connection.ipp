// connection: requests to Redis with deadlines. hiredis reads the replies; the sockets are the library's.
#pragma once

#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../../net/detail/socket.ipp"

namespace ojs::detail {
namespace redis {
struct deleter {
    void operator()(redisReply* target) const noexcept { freeReplyObject(target); }
    void operator()(redisReader* target) const noexcept { redisReaderFree(target); }
};
using reply = std::unique_ptr<redisReply, deleter>;
using words = std::vector<std::string>;  // a command and its arguments

OJS_SHUTDOWN_INLINE std::string text_of(const redisReply& from) {
    return from.str == nullptr ? std::string() : std::string(from.str, from.len);
}
OJS_SHUTDOWN_INLINE bool is_error(const redisReply& from, std::string_view code) {
    return from.type == REDIS_REPLY_ERROR && has_part(text_of(from), code);  // Redis 6: behind other text
}

OJS_SHUTDOWN_INLINE error failure(errc code, std::string text) { return {code, 0, "Redis: " + std::move(text)}; }

// What Redis says, which operators know, and what to do about it. Not what it quotes of the request.
OJS_SHUTDOWN_INLINE error refusal(const redisReply& from) {
    static constexpr const char* hints[][2] = {
        {"NOAUTH", "; write redis://:PASSWORD@HOST"},           {"CROSSSLOT", "; write a hash tag into the prefix"},
        {"MOVED", "; connect to the node that has the stream"}, {"WRONGTYPE", "; the key of a queue is no stream"},
        {"nknown", "; Redis 6.2 or later is needed"},
    };
    std::string text = text_of(from);
    for (const char* const quotes : {" script:", ", with args"}) text.resize(min(text.find(quotes), text.size()));
    if (!text.empty() && text.back() == '.') text.pop_back();
    text = printable(text);
    for (const auto& [part, hint] : hints) {
        if (has_part(text, part)) return failure(errc::bad_response, text + hint);
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
    explicit connection(unique_fd socket) : socket_(std::move(socket)), reader_(redisReaderCreate()) {}

    // A readable `interrupt_fd` ends it. After an error it may have been executed. Redis' own errors are replies.
    result<reply> call(const words& command, time_point deadline, int interrupt_fd = -1) {
        const std::string request = encode(command);
        std::string_view unsent = request;
        for (;;) {
            void* got = nullptr;
            if (!reader_ || redisReaderGetReply(reader_.get(), &got) != REDIS_OK)
                return broken(errc::bad_response, "what came is not Redis' protocol");
            if (got != nullptr) return reply(static_cast<redisReply*>(got));
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
        if (count > 0) redisReaderFeed(reader_.get(), buffer, static_cast<std::size_t>(count));
        return count;
    }

    unique_fd socket_;
    std::unique_ptr<redisReader, deleter> reader_;
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
            if (out->is_open()) return out;
        }
        return connect(deadline);
    }
    void give_back(connection_ptr used) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (idle_.size() < max_idle && used->is_open()) idle_.push_back(std::move(used));
    }
    result<connection_ptr> connect(time_point deadline, int interrupt_fd = -1) {
        result<unique_fd> socket = resolver_->connect(deadline);
        if (!socket) return failure(errc::unreachable, socket.error().text);
        auto out = std::make_unique<connection>(std::move(*socket));
        words log_in = {"AUTH", to_.username, to_.password};
        if (to_.username.empty()) log_in.erase(log_in.begin() + 1);
        for (const words& command : {log_in, words{"SELECT", to_.database}}) {
            if (command.back().empty()) continue;
            const result<reply> done = out->call(command, deadline, interrupt_fd);
            if (!done) return error{errc::unreachable, 0, done.error().text};
            if ((*done)->type == REDIS_REPLY_ERROR) return refusal(**done);
        }
        return out;
    }

  private:
    static constexpr std::size_t max_idle = 16;
    const address to_;
    const ref<resolver> resolver_;
    std::mutex mutex_;
    std::vector<connection_ptr> idle_;
};

// A Lua script, which Redis keeps under its hash.
class script {
  public:
    explicit script(std::string source) : source_(std::move(source)) {}

    // `should_send` is called right before it is sent. Errors: unreachable, cancelled: it was not executed.
    result<reply> run(pool& from, words arguments, time_point deadline, const function<bool()>& should_send) {
        result<connection_ptr> on = from.take(deadline);
        if (!on) return on.error();
        arguments.insert(arguments.begin(), {"EVALSHA", hash()});
        for (;;) {
            if (steady_clock::now() >= deadline) return failure(errc::unreachable, "the deadline has passed");
            if (should_send && !should_send()) return error{errc::cancelled, 0, "the request is not wanted"};
            result<reply> out = (*on)->call(arguments, deadline);
            if (!out || !is_error(**out, "NOSCRIPT")) {
                from.give_back(std::move(*on));
                return out;
            }
            // The first time, and after SCRIPT FLUSH or a restart.
            const result<reply> loaded = (*on)->call({"SCRIPT", "LOAD", source_}, deadline);
            if (!loaded) return error{errc::unreachable, 0, loaded.error().text};
            if ((*loaded)->type == REDIS_REPLY_ERROR) return refusal(**loaded);
            arguments[1] = hash(text_of(**loaded));
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
