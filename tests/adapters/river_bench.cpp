// The floor for river_bench.py: the statements of ojs_river.hpp that claim and complete jobs, in bare loops of libpq without
// anything around them.
//
//     DATABASE_URL=... river_bench LOOPS BATCH
//
// So many loops, each a thread with a connection, each claiming and completing so many jobs at a time until there are none.
#define OJS_SHUTDOWN_IMPLEMENTATION 1  // it uses what that hides
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "ojs_river.hpp"

namespace {

using rows = std::unique_ptr<PGresult, void (*)(PGresult*)>;

[[noreturn]] void give_up(PGconn* connection) {
    std::fprintf(stderr, "river_bench: %s\n", PQerrorMessage(connection));
    std::exit(1);
}

// The tables are on the search_path.
std::string without_schema(std::string sql) {
    sql.erase(std::remove(sql.begin(), sql.end(), '@'), sql.end());
    return sql;
}

void prepare(PGconn* connection, const char* name, const char* sql) {
    const rows done(PQprepare(connection, name, without_schema(sql).c_str(), 0, nullptr), PQclear);
    if (PQresultStatus(done.get()) != PGRES_COMMAND_OK) give_up(connection);
}

rows execute(PGconn* connection, const char* name, const std::vector<const char*>& values) {
    rows found(
        PQexecPrepared(connection, name, static_cast<int>(values.size()), values.data(), nullptr, nullptr, 0),
        PQclear);
    if (PQresultStatus(found.get()) != PGRES_TUPLES_OK) give_up(connection);
    return found;
}

// "{a,b}" of a column, or of one value for each row.
std::string array_of(const rows& found, int column) {
    std::string out = "{";
    for (int row = 0; row < PQntuples(found.get()); ++row)
        out += (row == 0 ? "" : ",") + std::string(PQgetvalue(found.get(), row, column));
    return out + "}";
}
std::string array_of(const rows& found, const char* value) {
    std::string out = "{";
    for (int row = 0; row < PQntuples(found.get()); ++row) out += (row == 0 ? "" : ",") + std::string(value);
    return out + "}";
}

void work(const char* url, const char* batch) {
    const std::unique_ptr<PGconn, void (*)(PGconn*)> connection(PQconnectdb(url), PQfinish);
    if (PQstatus(connection.get()) != CONNECTION_OK) give_up(connection.get());
    prepare(connection.get(), "claim", ojs::detail::river::sql::claim.sql);
    prepare(connection.get(), "settle", ojs::detail::river::sql::settle.sql);
    for (;;) {
        const rows claimed =
            execute(connection.get(), "claim",
                    {"default", batch, "bench", "4194304", nullptr, "{}", "0", "9223372036854775807"});
        if (PQntuples(claimed.get()) == 0) return;
        const std::string ids = array_of(claimed, 0), attempts = array_of(claimed, 3);
        const std::string actions = array_of(claimed, "complete"), nulls = array_of(claimed, "NULL");
        execute(connection.get(), "settle",
                {ids.c_str(), attempts.c_str(), actions.c_str(), nulls.c_str(), nulls.c_str(), nulls.c_str(),
                 "bench", "public.river_insert"});
    }
}

}  // namespace

int main(int argc, char** argv) {
    const char* const url = std::getenv("DATABASE_URL");
    if (argc != 3 || url == nullptr) {
        std::fprintf(stderr, "usage: DATABASE_URL=... river_bench LOOPS BATCH\n");
        return 64;
    }
    std::vector<std::thread> loops;
    for (int i = 0; i < std::atoi(argv[1]); ++i) loops.emplace_back(work, url, argv[2]);
    for (std::thread& each : loops) each.join();
}
