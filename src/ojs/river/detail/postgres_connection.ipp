// postgres_connection: PostgreSQL by libpq, with one deadline a statement, and no doubt about a lost answer.
// A statement without an answer may have been executed, or may yet be: the next one uses a new connection,
// once the server has ended the old one, so that the database can tell.
#pragma once

#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>

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
    void operator()(PGconn* target) const noexcept { PQfinish(target); }
};
using postgres_result = std::unique_ptr<PGresult, postgres_deleter>;

// The rows of an answer, by row and column from 0.
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

// Prepared once on each connection under its name; sent as it is where that is empty.
struct postgres_statement {
    const char* name;
    const char* sql;
};

// A value for $1, $2, ...; NULL where it is absent.
struct postgres_value {
    postgres_value(std::string given) : text(std::move(given)) {}
    postgres_value(const char* given) : text(given) {}
    postgres_value(long long given) : text(std::to_string(given)) {}
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
        for (const char each : text) {
            if (each == '"' || each == '\\') text_ += '\\';
            text_ += each;
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

// "name", to be part of a statement.
OJS_SHUTDOWN_INLINE std::string quoted_identifier(std::string_view name) {
    std::string out = "\"";
    for (const char each : name) out += each == '"' ? "\"\"" : std::string(1, each);
    return out + "\"";
}

OJS_SHUTDOWN_INLINE error failure(errc code, std::string text) {
    return {code, 0, std::move(text), 0, {}};
}

// Whether `holds()` by the deadline.
template <class Holds>
bool wait_until(condition& changed, unique_lock& held, time_point deadline, Holds holds) {
    while (!holds()) {
        if (!changed.wait_until(held, deadline)) return holds();
    }
    return true;
}

// Of one thread at a time.
class postgres_connection {
  public:
    // `url` is a URI or connection string of libpq. `schema` replaces "@" in prepared statements.
    postgres_connection(std::string url, std::string name, std::string schema = {})
        : url_(std::move(url)), name_(std::move(name)), schema_(std::move(schema)) {}

    // A thread's turn to use it. False: it was another's until the deadline.
    class turn {
      public:
        turn(postgres_connection& of, time_point deadline) : of_(of) {
            unique_lock held(of_.mutex_);
            mine_ = wait_until(of_.free_again_, held, deadline, [&of] { return !of.taken_; });
            if (mine_) of_.taken_ = true;
        }
        turn(const turn&) = delete;
        turn& operator=(const turn&) = delete;
        ~turn() {
            if (!mine_) return;
            const unique_lock held(of_.mutex_);
            of_.taken_ = false;
            of_.free_again_.notify_one();
        }
        explicit operator bool() const noexcept { return mine_; }

      private:
        postgres_connection& of_;
        bool mine_ = false;
    };

    // Connects where there is no connection. `still_wanted` is asked right before the statement is sent; false:
    // errc::cancelled, and nothing is sent. Errors:
    //   unreachable               there is no connection, and nothing was sent
    //   disconnected, timed_out   it may have been done, or not; the next run() begins when that is settled
    //   unavailable               the server will not now, or not for us: rights, read only, no room, a lock
    //   rejected                  a value is refused, and will be again (SQLSTATE class 22, 23, 54)
    result<postgres_rows> run(const postgres_statement& what, const std::vector<postgres_value>& values,
                              time_point deadline, const function<bool()>& still_wanted = nullptr) {
        const result<void> ready = prepare(what, deadline);
        if (!ready) return ready.error();
        if (steady_clock::now() >= deadline) return failure(errc::unreachable, "no time left to ask");
        if (still_wanted && !still_wanted()) return failure(errc::cancelled, "not wanted any more");
        return send(what, values, deadline);
    }

    // Connects where there is no connection, and prepares the statement. Errors as those of run().
    result<void> prepare(const postgres_statement& what, time_point deadline) {
        if (connected() && has_ended()) close();
        if (!connected() && only_this_one_) return failure(errc::unreachable, "the connection ended");
        if (!connected()) {
            const result<void> made = connect(deadline);
            if (!made) return made;
        }
        return prepare_on(what, deadline);
    }

    bool connected() const noexcept { return connection_ != nullptr; }
    // The server's process behind it, which holds the locks that are taken over it; 0: there is no connection. From
    // any thread.
    long long server_process() const noexcept { return process_; }
    // A pooler stands between: it invents the process that it names when it connects.
    bool pooled() const noexcept {
        return connected() && process_ != 0 && PQbackendPID(connection_.get()) != process_;
    }
    int socket() const noexcept { return connected() ? PQsocket(connection_.get()) : -1; }
    // From now on run() makes no new connection: what this one holds, locks and LISTEN, would be gone with it.
    void keep_to_this_one() noexcept { only_this_one_ = true; }
    // The next run() connects anew.
    void begin_anew() noexcept {
        only_this_one_ = false;
        close();
    }
    // Once this descriptor is readable, nothing is waited for any more.
    void give_up_on(int descriptor) noexcept { interrupt_ = descriptor; }

    // What others have sent with NOTIFY. Does not wait. False: the connection is gone.
    template <class Take>
    bool take_notices(Take take) {
        if (!connected()) return false;
        const bool alive = PQconsumeInput(connection_.get()) != 0;
        while (PGnotify* const each = PQnotifies(connection_.get())) {
            take(std::string_view(each->relname), std::string_view(each->extra));
            PQfreemem(each);
        }
        if (!alive) lose(errc::disconnected);
        return alive;
    }

  private:
    void close() noexcept {
        connection_.reset();
        process_ = 0;
    }

    static std::string one_line(const char* text) {
        std::string out = text == nullptr ? "" : text;
        while (!out.empty() && out.back() == '\n') out.pop_back();
        std::replace(out.begin(), out.end(), '\n', ' ');
        return out;
    }

    // ---- connecting ----

    // An idle connection that the server has ended, as it does when it restarts.
    bool has_ended() {
        pollfd look = {PQsocket(connection_.get()), POLLIN, 0};
        if (::poll(&look, 1, 0) <= 0) return false;
        return PQconsumeInput(connection_.get()) == 0 || PQstatus(connection_.get()) != CONNECTION_OK;
    }

    result<void> connect(time_point deadline) {
        prepared_.clear();
        // The first ones are for what the URL does not say: a peer that is gone is noticed within half a minute.
        const char* const names[] = {
            "fallback_application_name", "keepalives_idle", "keepalives_interval", "keepalives_count",
            "tcp_user_timeout",          "dbname",          "client_encoding",     nullptr};
        const char* const values[] = {name_.c_str(), "10", "5", "3", "20000", url_.c_str(), "UTF8", nullptr};
        connection_.reset(PQconnectStartParams(names, values, 1));
        if (!connection_) return failure(errc::unreachable, "no memory for a connection");
        PQsetNoticeProcessor(
            connection_.get(), [](void*, const char*) {}, nullptr);
        const result<void> made = shake_hands(deadline);
        if (made) PQsetnonblocking(connection_.get(), 1);
        const result<void> known = made ? get_acquainted(deadline) : made;
        if (!known) {
            close();
            return failure(errc::unreachable, "no connection: " + known.error().text);
        }
        return known;
    }

    result<void> shake_hands(time_point deadline) {
        PostgresPollingStatusType wants = PGRES_POLLING_WRITING;
        while (PQstatus(connection_.get()) != CONNECTION_BAD && wants != PGRES_POLLING_FAILED) {
            if (wants == PGRES_POLLING_OK) return {};
            if (!wait_for(wants == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline))
                return failure(errc::timed_out, "the server did not answer in time");
            wants = PQconnectPoll(connection_.get());
        }
        return failure(errc::unreachable, one_line(PQerrorMessage(connection_.get())));
    }

    // Who serves us; and waits for the end of who served us before, should it still be at our statement.
    result<void> get_acquainted(time_point deadline) {
        static const postgres_statement who = {
            "",
            "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid()"};
        static const postgres_statement end = {
            "",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2 AND pid <> pg_backend_pid()"};
        while (lost_process_ != 0) {
            const result<postgres_rows> found = send(end, {lost_process_, lost_since_}, deadline);
            if (!found) return found.error();
            if (found->size() == 0) lost_process_ = 0;
            if (lost_process_ != 0 && steady_clock::now() >= deadline)
                return failure(errc::timed_out, "the server is still at a statement whose answer was lost");
            if (lost_process_ != 0) static_cast<void>(cancel_token().sleep_for(std::chrono::milliseconds(2)));
        }
        const result<postgres_rows> us = send(who, {}, deadline);
        if (!us) return us.error();
        if (us->size() != 1)
            return failure(errc::unavailable, "pg_stat_activity does not show this connection");
        process_ = us->number(0, 0);
        since_ = us->text(0, 1);
        return {};
    }

    // ---- a statement ----

    result<void> prepare_on(const postgres_statement& what, time_point deadline) {
        if (what.name[0] == '\0' || prepared_.count(what.name) != 0) return {};
        // Planning takes as long as the statement. A held lock ends the statement, not the connection.
        static const postgres_statement settings = {
            "",
            "SELECT set_config('plan_cache_mode', 'force_generic_plan', false),"
            " set_config('lock_timeout', '2s', false)"};
        result<postgres_rows> done = postgres_rows();
        if (prepared_.empty()) done = send(settings, {}, deadline);
        if (done &&
            PQsendPrepare(connection_.get(), what.name, with_schema(what.sql).c_str(), 0, nullptr) == 0)
            return give_up_unsent();
        if (done) done = await_answer(deadline);
        if (!done) return failure(connected() ? done.error().code : errc::unreachable, done.error().text);
        prepared_.insert(what.name);
        return {};
    }

    std::string with_schema(const char* sql) const {
        std::string out;
        for (; *sql != '\0'; ++sql) out += *sql == '@' ? schema_ : std::string(1, *sql);
        return out;
    }

    result<postgres_rows> send(const postgres_statement& what, const std::vector<postgres_value>& values,
                               time_point deadline) {
        std::vector<const char*> texts;
        for (const postgres_value& each : values) texts.push_back(each.is_null ? nullptr : each.text.c_str());
        PGconn* const to = connection_.get();
        const int count = static_cast<int>(texts.size());
        const int sent =
            what.name[0] == '\0'
                ? PQsendQueryParams(to, what.sql, count, nullptr, texts.data(), nullptr, nullptr, 0)
                : PQsendQueryPrepared(to, what.name, count, texts.data(), nullptr, nullptr, 0);
        return sent == 0 ? give_up_unsent() : await_answer(deadline);
    }

    error give_up_unsent() {
        const error why = failure(errc::unreachable, one_line(PQerrorMessage(connection_.get())));
        close();
        return why;
    }

    result<postgres_rows> await_answer(time_point deadline) {
        for (int unsent = 1; unsent != 0;) {
            unsent = PQflush(connection_.get());
            if (unsent < 0) return lose(errc::disconnected);
            if (unsent > 0 && !wait_for(POLLIN | POLLOUT, deadline)) return lose(errc::timed_out);
            if (unsent > 0 && PQconsumeInput(connection_.get()) == 0) return lose(errc::disconnected);
        }
        postgres_result last;
        for (;;) {
            while (PQisBusy(connection_.get()) != 0) {
                if (!wait_for(POLLIN, deadline)) return lose(errc::timed_out);
                if (PQconsumeInput(connection_.get()) == 0) return lose(errc::disconnected);
            }
            PGresult* const next = PQgetResult(connection_.get());
            if (next == nullptr) break;
            last.reset(next);
        }
        return read(std::move(last));
    }

    result<postgres_rows> read(postgres_result answer) {
        const ExecStatusType status = answer ? PQresultStatus(answer.get()) : PGRES_FATAL_ERROR;
        if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) return postgres_rows(std::move(answer));
        const char* const state = answer ? PQresultErrorField(answer.get(), PG_DIAG_SQLSTATE) : nullptr;
        const char* const severity =
            answer ? PQresultErrorField(answer.get(), PG_DIAG_SEVERITY_NONLOCALIZED) : nullptr;
        if (state == nullptr || severity == nullptr || severity != std::string_view("ERROR"))
            return lose(errc::disconnected, answer ? PQresultErrorMessage(answer.get()) : nullptr);
        // Not DETAIL, which may quote a job's arguments.
        return failure(meaning(state), one_line(PQresultErrorField(answer.get(), PG_DIAG_MESSAGE_PRIMARY)) +
                                           " (" + state + ")");
    }

    static errc meaning(std::string_view state) {
        const std::string_view kind = state.substr(0, 2);
        return kind == "22" || kind == "23" || kind == "54" ? errc::rejected : errc::unavailable;
    }

    // The statement under way may have been done, or may yet be.
    error lose(errc code, const char* said = nullptr) {
        if (code == errc::timed_out) said = "the database did not answer in time";
        const error why = failure(code, one_line(said != nullptr ? said : PQerrorMessage(connection_.get())));
        if (process_ != 0) {
            lost_process_ = process_;
            lost_since_ = since_;
        }
        close();
        return why;
    }

    // False at the deadline, and where nobody wants it any more.
    bool wait_for(int events, time_point deadline) {
        for (;;) {
            pollfd looks[] = {{PQsocket(connection_.get()), static_cast<short>(events), 0},
                              {interrupt_, POLLIN, 0}};
            const int ready = ::poll(looks, 2, poll_timeout(deadline));
            if (ready < 0 && errno != EINTR) return true;  // libpq will say
            if (ready > 0) return looks[1].revents == 0;
            if (ready == 0 && steady_clock::now() >= deadline) return false;
        }
    }

    const std::string url_;
    const std::string name_;
    const std::string schema_;
    std::unique_ptr<PGconn, postgres_deleter> connection_;
    bool only_this_one_ = false;
    int interrupt_ = -1;
    std::set<std::string> prepared_;
    std::atomic<long long> process_{0};  // and since when, which tells it from a later one of that number
    std::string since_;
    long long lost_process_ = 0;  // that may still be at a statement of ours
    std::string lost_since_;
    mutex mutex_;
    condition free_again_;
    bool taken_ = false;
};

}  // namespace river
}  // namespace ojs::detail
