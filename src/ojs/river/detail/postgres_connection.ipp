// postgres_connection: PostgreSQL by libpq, with a deadline for each statement.
// A statement without a response may still be executed. The next one waits until the server has ended the old
// connection, so that the database shows the outcome.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../base/error.hpp"
#include "../../core/cancel_token.hpp"
#include "../../core/detail/wake.hpp"

namespace ojs::detail {
namespace river {
struct postgres_deleter {
    void operator()(PGresult* target) const noexcept { PQclear(target); }
    void operator()(PGconn* target) const noexcept {
        if (owner == ::getpid()) PQfinish(target);  // a child of fork() would end its parent's session
    }
    pid_t owner = ::getpid();
};
using postgres_result = std::unique_ptr<PGresult, postgres_deleter>;

// A statement's result; rows and columns count from 0.
class postgres_rows {
  public:
    explicit postgres_rows(postgres_result rows = nullptr) : rows_(std::move(rows)) {}

    int size() const { return rows_ ? PQntuples(rows_.get()) : 0; }
    bool is_null(int row, int column) const { return PQgetisnull(rows_.get(), row, column) != 0; }
    std::string text(int row, int column) const {
        return std::string(PQgetvalue(rows_.get(), row, column),
                           static_cast<std::size_t>(PQgetlength(rows_.get(), row, column)));
    }
    long long number(int row, int column) const { return std::atoll(PQgetvalue(rows_.get(), row, column)); }

  private:
    postgres_result rows_;
};

// Prepared once on each connection under its name; without a name, sent unprepared.
struct postgres_statement {
    const char* name;
    const char* sql;
};

// A value for $1, $2, ...; nullptr is NULL.
struct postgres_value {
    postgres_value(std::string value) : text(std::move(value)) {}
    postgres_value(const char* value) : text(value) {}
    postgres_value(long long value) : text(std::to_string(value)) {}
    postgres_value(std::nullptr_t) : is_null(true) {}

    std::string text;
    bool is_null = false;
};

// An array as PostgreSQL writes it: {"a","b",NULL}.
class postgres_array {
  public:
    void add(std::string_view text) {
        separate();
        text_ += '"';
        for (const char byte : text) {
            if (byte == '"' || byte == '\\') text_ += '\\';
            text_ += byte;
        }
        text_ += '"';
    }
    void add(long long number) {
        separate();
        text_ += std::to_string(number);
    }
    void add_null() {
        separate();
        text_ += "NULL";
    }
    std::string text() const { return text_ + "}"; }

  private:
    void separate() {
        if (text_.size() > 1) text_ += ',';
    }
    std::string text_ = "{";
};

OJS_SHUTDOWN_INLINE std::string quoted_identifier(std::string_view name) {
    std::string out = "\"";
    for (const char byte : name) out += byte == '"' ? "\"\"" : std::string(1, byte);
    return out + "\"";
}

OJS_SHUTDOWN_INLINE error failure(errc code, std::string text) { return {code, 0, std::move(text), 0, {}}; }

// Returns whether `holds()` became true by the deadline.
template <class Holds>
bool wait_until(condition& changed, unique_lock& held, time_point deadline, Holds holds) {
    while (!holds()) {
        if (!changed.wait_until(held, deadline)) return holds();
    }
    return true;
}

// Used by one thread at a time, which holds the turn.
class postgres_connection {
  public:
    // `url` is a URI or connection string of libpq. `schema` replaces "@" in prepared statements.
    postgres_connection(std::string url, std::string name, std::string schema = {})
        : url_(std::move(url)), name_(std::move(name)), schema_(std::move(schema)) {}

    // A thread's turn to use the connection. False: another thread kept it until the deadline.
    class turn {
      public:
        turn(postgres_connection& target, time_point deadline) : target_(target) {
            unique_lock held(target_.mutex_);
            is_mine_ = wait_until(target.released_, held, deadline, [&] { return !target.is_taken_; });
            if (is_mine_) target_.is_taken_ = true;
        }
        turn(const turn&) = delete;
        turn& operator=(const turn&) = delete;
        ~turn() {
            if (!is_mine_) return;
            const unique_lock held(target_.mutex_);
            target_.is_taken_ = false;
            target_.released_.notify_one();
        }
        explicit operator bool() const noexcept { return is_mine_; }

      private:
        postgres_connection& target_;
        bool is_mine_ = false;
    };
    error busy(errc code) const { return failure(code, "connection '" + name_ + "' was busy until the deadline"); }

    // Connects if necessary. `should_send` is called right before the statement is sent; false: errc::cancelled, and
    // nothing is sent. Errors:
    //   unreachable               there is no connection, and nothing was sent
    //   disconnected, timed_out   it may have been executed; the next run() first waits until that is settled
    //   unavailable               the server refuses for now: read-only, disk full, a lock
    //   rejected                  the server will always refuse it: a value, a constraint, a trigger, rights
    result<postgres_rows> run(const postgres_statement& query, const std::vector<postgres_value>& values,
                              time_point deadline, const function<bool()>& should_send = nullptr) {
        const result<void> ready = prepare(query, deadline);
        if (!ready) return ready.error();
        if (steady_clock::now() >= deadline) return failure(errc::unreachable, "not sent before the deadline");
        if (should_send && !should_send()) return failure(errc::cancelled, "cancelled: the worker stopped fetching");
        return send(query, values, deadline);
    }

    // Connects if necessary, and prepares the statement. Errors: as for run().
    result<void> prepare(const postgres_statement& query, time_point deadline) {
        if (is_connected() && is_closed_by_server()) close();
        if (!is_connected() && no_reconnect_) return failure(errc::unreachable, "the database connection ended");
        if (!is_connected()) {
            const result<void> done = connect(deadline);
            if (!done) return done;
        }
        return prepare_on(query, deadline);
    }

    bool is_connected() const noexcept { return connection_ != nullptr; }
    // The server process, which holds this connection's locks; 0: not connected. Thread-safe.
    long long backend_pid() const noexcept { return backend_pid_; }
    // A pooler reports a process id of its own.
    bool is_pooled() const noexcept {
        return is_connected() && backend_pid_ != 0 && PQbackendPID(connection_.get()) != backend_pid_;
    }
    int socket() const noexcept { return is_connected() ? PQsocket(connection_.get()) : -1; }
    // A new connection would be without this one's locks and LISTEN: run() fails instead of reconnecting.
    void forbid_reconnect() noexcept { no_reconnect_ = true; }
    // Closes; the next run() reconnects.
    void reset() noexcept {
        no_reconnect_ = false;
        close();
    }
    void set_interrupt_fd(int descriptor) noexcept { interrupt_fd_ = descriptor; }  // readable: ends every wait

    // Passes NOTIFY messages to `take`, without waiting. Disconnects if the session is lost: false.
    template <class Take>
    bool take_notifications(Take take) {
        if (!is_connected()) return false;
        const bool alive = PQconsumeInput(connection_.get()) != 0;
        while (PGnotify* const received = PQnotifies(connection_.get())) {
            take(std::string_view(received->relname), std::string_view(received->extra));
            PQfreemem(received);
        }
        if (!alive) disconnect(errc::disconnected);
        return alive;
    }

  private:
    void close() noexcept {
        connection_.reset();
        backend_pid_ = 0;
    }

    static std::string one_line(const char* text) {
        std::string out = text == nullptr ? "" : text;
        while (!out.empty() && out.back() == '\n') out.pop_back();
        std::replace(out.begin(), out.end(), '\n', ' ');
        return out;
    }

    bool is_closed_by_server() {
        pollfd polled = {PQsocket(connection_.get()), POLLIN, 0};
        if (::poll(&polled, 1, 0) <= 0) return false;
        return PQconsumeInput(connection_.get()) == 0 || PQstatus(connection_.get()) != CONNECTION_OK;
    }

    result<void> connect(time_point deadline) {
        prepared_.clear();
        fill_standard_descriptors();
        // Defaults that the URL overrides: a dead peer is noticed within half a minute.
        const char* const names[] = {
            "fallback_application_name", "keepalives_idle", "keepalives_interval", "keepalives_count",
            "tcp_user_timeout",          "dbname",          "client_encoding",     nullptr};
        const char* const values[] = {name_.c_str(), "10", "5", "3", "20000", url_.c_str(), "UTF8", nullptr};
        connection_.reset(PQconnectStartParams(names, values, 1));
        if (!connection_) return failure(errc::unreachable, "no memory for a connection to PostgreSQL");
        PQsetNoticeProcessor(
            connection_.get(), [](void*, const char*) {}, nullptr);
        const result<void> connected = finish_connecting(deadline);
        if (connected) PQsetnonblocking(connection_.get(), 1);
        const result<void> known = connected ? identify_backend(deadline) : connected;
        if (!known) {
            close();
            return failure(errc::unreachable, "no connection: " + known.error().text);
        }
        return known;
    }

    result<void> finish_connecting(time_point deadline) {
        PostgresPollingStatusType status = PGRES_POLLING_WRITING;
        while (PQstatus(connection_.get()) != CONNECTION_BAD && status != PGRES_POLLING_FAILED) {
            if (status == PGRES_POLLING_OK) return {};
            if (!wait_for(status == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline))
                return failure(errc::timed_out, "the database did not respond before the deadline");
            status = PQconnectPoll(connection_.get());
        }
        return failure(errc::unreachable, one_line(PQerrorMessage(connection_.get())));
    }

    // Reads our server process, and ends the previous one: it may still execute our last statement.
    result<void> identify_backend(time_point deadline) {
        static const postgres_statement identify = {
            "",
            "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid()"};
        static const postgres_statement terminate = {
            "",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2 AND pid <> pg_backend_pid()"};
        while (lost_pid_ != 0) {
            const result<postgres_rows> found = send(terminate, {lost_pid_, lost_start_}, deadline);
            if (!found) return found.error();
            if (found->size() == 0) lost_pid_ = 0;
            if (lost_pid_ != 0 && steady_clock::now() >= deadline)
                return failure(errc::timed_out, "the server still executes the previous statement");
            if (lost_pid_ != 0) static_cast<void>(cancel_token().sleep_for(std::chrono::milliseconds(2)));
        }
        const result<postgres_rows> self = send(identify, {}, deadline);
        if (!self) return self.error();
        if (self->size() != 1) return failure(errc::unavailable, "pg_stat_activity does not show this connection");
        backend_pid_ = self->number(0, 0);
        backend_start_ = self->text(0, 1);
        return {};
    }

    result<void> prepare_on(const postgres_statement& query, time_point deadline) {
        if (query.name[0] == '\0' || prepared_.count(query.name) != 0) return {};
        // Planning takes as long as the statement itself; lock_timeout ends the statement, not the connection.
        static const postgres_statement settings = {"",
                                                    "SELECT set_config('plan_cache_mode', 'force_generic_plan', false),"
                                                    " set_config('lock_timeout', '2s', false)"};
        result<postgres_rows> done = postgres_rows();
        if (prepared_.empty()) done = send(settings, {}, deadline);
        if (done && PQsendPrepare(connection_.get(), query.name, with_schema(query.sql).c_str(), 0, nullptr) == 0)
            return close_unsent();
        if (done) done = await_result(deadline);
        if (!done) return failure(is_connected() ? done.error().code : errc::unreachable, done.error().text);
        prepared_.insert(query.name);
        return {};
    }

    std::string with_schema(const char* sql) const {
        std::string out;
        for (; *sql != '\0'; ++sql) out += *sql == '@' ? schema_ : std::string(1, *sql);
        return out;
    }

    result<postgres_rows> send(const postgres_statement& query, const std::vector<postgres_value>& values,
                               time_point deadline) {
        std::vector<const char*> texts;
        for (const postgres_value& value : values) texts.push_back(value.is_null ? nullptr : value.text.c_str());
        PGconn* const connection = connection_.get();
        const int count = static_cast<int>(texts.size());
        const int sent =
            query.name[0] == '\0'
                ? PQsendQueryParams(connection, query.sql, count, nullptr, texts.data(), nullptr, nullptr, 0)
                : PQsendQueryPrepared(connection, query.name, count, texts.data(), nullptr, nullptr, 0);
        return sent == 0 ? close_unsent() : await_result(deadline);
    }

    error close_unsent() {
        const error reason = failure(errc::unreachable, one_line(PQerrorMessage(connection_.get())));
        close();
        return reason;
    }

    result<postgres_rows> await_result(time_point deadline) {
        for (int unsent = 1; unsent != 0;) {
            unsent = PQflush(connection_.get());
            if (unsent < 0) return disconnect(errc::disconnected);
            if (unsent > 0 && !wait_for(POLLIN | POLLOUT, deadline)) return disconnect(errc::timed_out);
            if (unsent > 0 && PQconsumeInput(connection_.get()) == 0) return disconnect(errc::disconnected);
        }
        postgres_result last;
        for (;;) {
            while (PQisBusy(connection_.get()) != 0) {
                if (!wait_for(POLLIN, deadline)) return disconnect(errc::timed_out);
                if (PQconsumeInput(connection_.get()) == 0) return disconnect(errc::disconnected);
            }
            PGresult* const next = PQgetResult(connection_.get());
            if (next == nullptr) break;
            last.reset(next);
        }
        return rows_or_error(std::move(last));
    }

    result<postgres_rows> rows_or_error(postgres_result reply) {  // disconnects if the session is lost
        const ExecStatusType status = reply ? PQresultStatus(reply.get()) : PGRES_FATAL_ERROR;
        if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) return postgres_rows(std::move(reply));
        const char* const state = reply ? PQresultErrorField(reply.get(), PG_DIAG_SQLSTATE) : nullptr;
        const char* const severity = reply ? PQresultErrorField(reply.get(), PG_DIAG_SEVERITY_NONLOCALIZED) : nullptr;
        if (state == nullptr || severity == nullptr || severity != std::string_view("ERROR"))
            return disconnect(errc::disconnected, reply ? PQresultErrorMessage(reply.get()) : nullptr);
        // Classes: connection, transaction, resources, locks, operators, disks.
        const bool may_pass = is_listed(std::string_view(state).substr(0, 2), "08 0A 25 26 40 53 55 57 58");
        // Without DETAIL, which may quote a job's arguments.
        return failure(may_pass ? errc::unavailable : errc::rejected,
                       one_line(PQresultErrorField(reply.get(), PG_DIAG_MESSAGE_PRIMARY)) + " (" + state + ")");
    }

    // The statement in progress may have been executed, or may still be.
    error disconnect(errc code, const char* text = nullptr) {
        if (code == errc::timed_out) text = "the database did not respond before the deadline";
        const error out = failure(code, one_line(text != nullptr ? text : PQerrorMessage(connection_.get())));
        if (backend_pid_ != 0) {
            lost_pid_ = backend_pid_;
            lost_start_ = backend_start_;
        }
        close();
        return out;
    }

    // False at the deadline or after an interrupt.
    bool wait_for(int events, time_point deadline) {
        for (;;) {
            pollfd polled[] = {{PQsocket(connection_.get()), static_cast<short>(events), 0},
                               {interrupt_fd_, POLLIN, 0}};
            const int ready = ::poll(polled, 2, poll_timeout(deadline));
            if (ready < 0 && errno != EINTR) return true;  // libpq reports the error
            if (ready > 0) return polled[1].revents == 0;
            if (ready == 0 && steady_clock::now() >= deadline) return false;
        }
    }

    const std::string url_;
    const std::string name_;
    const std::string schema_;
    std::unique_ptr<PGconn, postgres_deleter> connection_;
    bool no_reconnect_ = false;
    int interrupt_fd_ = -1;
    std::set<std::string> prepared_;
    std::atomic<long long> backend_pid_{0};  // with its start time, as the kernel reuses pids
    std::string backend_start_;
    long long lost_pid_ = 0;  // may still execute our statement
    std::string lost_start_;
    mutex mutex_;
    condition released_;
    bool is_taken_ = false;
};
}  // namespace river
}  // namespace ojs::detail
