#include "storage.hpp"

#include <utility>

#if __has_include(<sqlite3.h>)
#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "refusal.hpp"

namespace dev_backend {

namespace sqlite {

struct statement_end {
    void operator()(sqlite3_stmt* ended) const { sqlite3_finalize(ended); }
};
using statement = std::unique_ptr<sqlite3_stmt, statement_end>;

struct database_end {
    void operator()(sqlite3* ended) const { sqlite3_close(ended); }
};
using database = std::unique_ptr<sqlite3, database_end>;

}  // namespace sqlite

namespace {

// One column each, in the order of `bind_changing` and `row_at`. Times are milliseconds since the epoch.
constexpr const char* const schema =
    "CREATE TABLE jobs (id TEXT PRIMARY KEY, turn INTEGER NOT NULL, fixed TEXT NOT NULL, meta TEXT NOT NULL,"
    " state TEXT NOT NULL, attempt INTEGER NOT NULL, worker TEXT NOT NULL, lease_ms INTEGER NOT NULL,"
    " due_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,"
    " retry_delay_ms INTEGER NOT NULL, result TEXT NOT NULL, error TEXT NOT NULL, errors TEXT NOT NULL,"
    " is_dead_letter INTEGER NOT NULL) WITHOUT ROWID";
constexpr const char* const insert_row =
    "INSERT INTO jobs (meta, state, attempt, worker, lease_ms, due_ms, started_ms, ended_ms, retry_delay_ms, "
    "result,"
    " error, errors, is_dead_letter, id, turn, fixed) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
constexpr const char* const update_row =
    "UPDATE jobs SET meta=?, state=?, attempt=?, worker=?, lease_ms=?, due_ms=?, started_ms=?, ended_ms=?,"
    " retry_delay_ms=?, result=?, error=?, errors=?, is_dead_letter=? WHERE id=?";
constexpr const char* const all_rows =
    "SELECT id, turn, fixed, meta, state, attempt, worker, lease_ms, due_ms, started_ms, ended_ms, "
    "retry_delay_ms,"
    " result, error, errors, is_dead_letter FROM jobs ORDER BY turn";

constexpr int application_id = 0x4f4a5331;  // "OJS1", in the file's head
constexpr int format = 1;

void bind(sqlite3_stmt* to, int at, const std::string& text) {
    sqlite3_bind_text64(to, at, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
}

// The position of id in both statements.
int bind_changing(sqlite3_stmt* to, const row& from) {
    int at = 0;
    bind(to, ++at, from.meta);
    bind(to, ++at, from.state);
    sqlite3_bind_int64(to, ++at, from.attempt);
    bind(to, ++at, from.worker);
    for (const std::int64_t number :
         {from.lease_ms, from.due_ms, from.started_ms, from.ended_ms, from.retry_delay_ms}) {
        sqlite3_bind_int64(to, ++at, number);
    }
    bind(to, ++at, from.result);
    bind(to, ++at, from.error);
    bind(to, ++at, from.errors);
    sqlite3_bind_int(to, ++at, from.is_dead_letter ? 1 : 0);
    bind(to, ++at, from.id);
    return at;
}

std::string text_at(sqlite3_stmt* from, int column) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(from, column));
    return text == nullptr ? std::string()
                           : std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(from, column)));
}

std::int64_t number_at(sqlite3_stmt* from, int column) {
    if (sqlite3_column_type(from, column) != SQLITE_INTEGER)
        refuse_shape(std::string(sqlite3_column_name(from, column)) + " is not a number");
    return sqlite3_column_int64(from, column);
}

row row_at(sqlite3_stmt* from) {
    row out;
    int at = 0;
    out.id = text_at(from, at);
    out.turn = number_at(from, ++at);
    out.fixed = text_at(from, ++at);
    out.meta = text_at(from, ++at);
    out.state = text_at(from, ++at);
    out.attempt = number_at(from, ++at);
    out.worker = text_at(from, ++at);
    for (std::int64_t* number :
         {&out.lease_ms, &out.due_ms, &out.started_ms, &out.ended_ms, &out.retry_delay_ms}) {
        *number = number_at(from, ++at);
    }
    out.result = text_at(from, ++at);
    out.error = text_at(from, ++at);
    out.errors = text_at(from, ++at);
    out.is_dead_letter = number_at(from, ++at) != 0;
    return out;
}

}  // namespace

class storage::impl {
  public:
    // SQLite treats some names specially (":memory:", "file:..."), but no path.
    explicit impl(const std::string& path) : path_(path.front() == '/' ? path : "./" + path) {}

    ojs::result<void> open(bool full_sync) {
        sqlite3* opened = nullptr;
        const int code =
            sqlite3_open_v2(path_.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
        database_.reset(opened);
        if (code != SQLITE_OK) return fault();
        // A file refused below stays unchanged, with the log beside it.
        sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
        // Exclusive: no second process may change the file, so the index of the log needs no shared memory.
        if (auto done = run("PRAGMA locking_mode=EXCLUSIVE"); !done) return done;
        if (auto done = require_own_file(); !done) return done;
        sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
        if (auto done = run("PRAGMA journal_mode=WAL"); !done) return done;
        if (auto done = run(full_sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"); !done)
            return done;
        // Locks the file while it is open, and checks that it can be written.
        if (auto done = run("BEGIN IMMEDIATE"); !done) return done;
        if (is_new_) {
            const std::string head = "PRAGMA application_id=" + std::to_string(application_id) +
                                     "; PRAGMA user_version=" + std::to_string(format);
            if (auto done = run(schema); !done) return done;
            if (auto done = run(head.c_str()); !done) return done;
        } else if (auto done = run("UPDATE jobs SET turn=turn WHERE id=''"); !done) {
            return done;
        }
        if (auto done = run("COMMIT"); !done) return done;
        return prepare();
    }

    ojs::result<void> load(const std::function<void(const row&)>& take) {
        sqlite::statement all = compile(all_rows);
        if (!all) return fault();
        int code = sqlite3_step(all.get());
        for (; code == SQLITE_ROW; code = sqlite3_step(all.get())) {
            try {
                take(row_at(all.get()));
            } catch (const refusal& why) {
                return ojs::error{
                    ojs::errc::system, 0,
                    path_ + ": job " + text_at(all.get(), 0) + " cannot be read: " + why.message};
            }
        }
        if (code != SQLITE_DONE) return fault();
        return {};
    }

    ojs::result<void> commit(const std::vector<changed_rows>& batches) {
        if (auto done = run("BEGIN IMMEDIATE"); !done) return done;
        ojs::result<void> done;
        for (const changed_rows& each : batches) {
            if (done) done = write(each);
        }
        if (done) done = run("COMMIT");
        if (!done && sqlite3_get_autocommit(database_.get()) == 0) static_cast<void>(run("ROLLBACK"));
        return done;
    }

  private:
    ojs::error fault() const {
        const int code = sqlite3_errcode(database_.get());
        const bool is_busy = code == SQLITE_BUSY || code == SQLITE_LOCKED;
        const std::string why = is_busy ? "another process has it open" : sqlite3_errmsg(database_.get());
        return {is_busy ? ojs::errc::busy : ojs::errc::system, 0, path_ + ": " + why};
    }

    ojs::result<void> run(const char* commands) {
        if (sqlite3_exec(database_.get(), commands, nullptr, nullptr, nullptr) != SQLITE_OK) return fault();
        return {};
    }

    sqlite::statement compile(const char* text) {
        sqlite3_stmt* out = nullptr;
        sqlite3_prepare_v2(database_.get(), text, -1, &out, nullptr);
        return sqlite::statement(out);
    }

    // The first column of the first row.
    ojs::result<std::string> ask(const char* text) {
        const sqlite::statement asked = compile(text);
        if (!asked || sqlite3_step(asked.get()) != SQLITE_ROW) return fault();
        return text_at(asked.get(), 0);
    }

    // A foreign or damaged file stays unchanged.
    ojs::result<void> require_own_file() {
        const ojs::error not_ours{ojs::errc::system, 0, path_ + ": it is no store of dev_backend"};
        const auto tables = ask("SELECT count(*) FROM sqlite_master");
        if (!tables) return tables.error();
        const auto owner = ask("PRAGMA application_id");
        const auto version = ask("PRAGMA user_version");
        if (!owner || !version) return fault();
        is_new_ = *tables == "0" && *owner == "0";
        if (is_new_) return {};
        if (*owner != std::to_string(application_id)) return not_ours;
        if (*version != std::to_string(format)) {
            return ojs::error{
                ojs::errc::system, 0,
                path_ + ": it is of format " + *version + ", this reads " + std::to_string(format)};
        }
        const auto health = ask("PRAGMA quick_check(1)");
        if (!health) return health.error();
        if (*health != "ok") return ojs::error{ojs::errc::system, 0, path_ + ": it is damaged: " + *health};
        return {};
    }

    ojs::result<void> prepare() {
        insert_ = compile(insert_row);
        update_ = compile(update_row);
        delete_ = compile("DELETE FROM jobs WHERE id=?");
        if (!insert_ || !update_ || !delete_) return fault();
        return {};
    }

    // A removed id may be in use again.
    ojs::result<void> write(const changed_rows& batch) {
        for (const std::string& each : batch.removed) {
            bind(delete_.get(), 1, each);
            if (auto done = execute(delete_.get()); !done) return done;
        }
        for (const row& each : batch.rows) {
            sqlite3_stmt* by = each.is_new ? insert_.get() : update_.get();
            int at = bind_changing(by, each);
            if (each.is_new) {
                sqlite3_bind_int64(by, ++at, each.turn);
                bind(by, ++at, each.fixed);
            }
            if (auto done = execute(by); !done) return done;
        }
        return {};
    }

    ojs::result<void> execute(sqlite3_stmt* prepared) {
        const bool done = sqlite3_step(prepared) == SQLITE_DONE;
        ojs::result<void> out;
        if (!done) out = fault();
        sqlite3_reset(prepared);
        return out;
    }

    const std::string path_;
    bool is_new_ = false;
    sqlite::database database_;  // before its statements, which must be destroyed first
    sqlite::statement insert_;
    sqlite::statement update_;
    sqlite::statement delete_;
};

namespace {

// Readable by the owner only: arguments of jobs may be confidential.
ojs::result<void> make_file(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return ojs::error{ojs::errc::system, errno, path + ": " + std::strerror(errno)};
    ::close(fd);
    return {};
}

}  // namespace

ojs::result<storage> storage::open(const std::string& path, bool full_sync) {
    if (auto made = make_file(path); !made) return made.error();
    auto body = std::make_unique<impl>(path);
    if (auto opened = body->open(full_sync); !opened) return opened.error();
    return storage(std::move(body));
}

ojs::result<void> storage::load(const std::function<void(const row&)>& take) {
    return impl_->load(take);
}

ojs::result<void> storage::commit(const std::vector<changed_rows>& batches) {
    return impl_->commit(batches);
}

#else

namespace dev_backend {

class storage::impl {};

ojs::result<storage> storage::open(const std::string& path, bool) {
    return ojs::error{ojs::errc::invalid_argument, 0, path + ": this dev_backend was built without SQLite"};
}

ojs::result<void> storage::load(const std::function<void(const row&)>&) {
    return {};
}

ojs::result<void> storage::commit(const std::vector<changed_rows>&) {
    return {};
}

#endif

storage::storage(std::unique_ptr<impl> body) : impl_(std::move(body)) {}
storage::storage(storage&&) noexcept = default;
storage& storage::operator=(storage&&) noexcept = default;
storage::~storage() = default;

}  // namespace dev_backend
