// database: the connections to River's tables, each for one use.
#pragma once

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../river_transport.hpp"
#include "postgres_connection.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace river {

using turn = shared_connection::turn;
using values = std::vector<postgres_value>;

// PostgreSQL stores no NUL, and only whole characters.
OJS_SHUTDOWN_INLINE std::string storable(std::string text, bool ascii_only) {
    for (char& each : text) {
        if (each == '\0' || (ascii_only && static_cast<unsigned char>(each) >= 0x80)) each = '?';
    }
    return text;
}

OJS_SHUTDOWN_INLINE postgres_array array_of(const std::vector<std::string>& texts) {
    postgres_array out;
    for (const std::string& each : texts) out.add(each);
    return out;
}

// The statement may have been executed, or not.
OJS_SHUTDOWN_INLINE bool is_lost(const error& reason) {
    return reason.code == errc::timed_out || reason.code == errc::disconnected;
}

class database {
  public:
    database(const std::string& url, river_options given)
        : options(std::move(given)),
          schema(options.schema.empty() ? "" : quoted_identifier(options.schema) + "."),
          claiming(url, "ojs claims", schema),
          settling(url, "ojs settles", schema),
          beating(url, "ojs beats", schema),
          saving(url, "ojs checkpoints", schema),
          listening(url, "ojs session", schema) {}

    void notice(const std::string& text) const { options.on_notice(text); }
    template <class Value>
    bool check(const result<Value>& done, const char* what) const {
        if (!done) notice(std::string(what) + ": " + done.error().text);
        return bool(done);
    }

    // For a statement whose last two values are the first and the last id. Where a constraint refuses a row, and with it the
    // statement, each half is run by itself until that row is alone: it is logged and left out.
    result<void> run_by_halves(shared_connection& on, const postgres_statement& what,
                               const function<values()>& others,
                               const function<void(const postgres_rows&)>& take, time_point deadline,
                               const function<bool()>& still_wanted = nullptr,
                               std::set<long long>* refused = nullptr) {
        using ids = std::numeric_limits<long long>;
        std::vector<std::pair<long long, long long>> ranges = {{ids::min(), ids::max()}};
        while (!ranges.empty()) {
            const auto [from, to] = ranges.back();
            ranges.pop_back();
            values all = others();
            all.insert(all.end(), {from, to});
            const result<postgres_rows> rows = on.run(what, all, deadline, still_wanted);
            if (rows) {
                take(*rows);
            } else if (rows.error().code != errc::rejected) {
                return rows.error();
            } else if (from == to) {
                notice(std::string(what.name) + " of job " + std::to_string(from) + ": " + rows.error().text);
                if (refused != nullptr) refused->insert(from);
            } else {
                const long long middle = (from >> 1) + (to >> 1) + (from & to & 1);
                ranges.insert(ranges.end(), {{middle + 1, to}, {from, middle}});
            }
        }
        return {};
    }

    const river_options options;
    const std::string schema;  // as statements have it
    shared_connection claiming;
    shared_connection settling;
    shared_connection beating;
    shared_connection saving;
    shared_connection listening;  // the session's: it holds the lock
};

}  // namespace river
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
