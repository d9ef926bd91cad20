// The floor for river_bench.py: the statements of ojs_river.hpp that claim and complete jobs, in bare loops.
//
//     DATABASE_URL=... river_bench LOOPS BATCH
//
// Each loop is a thread with a connection; it claims and completes BATCH jobs at a time until there are none.
#define OJS_SHUTDOWN_IMPLEMENTATION 1  // it uses what that hides
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "ojs_river.hpp"

namespace {
namespace river = ojs::detail::river;

struct connection : river::postgres_connection {
    connection() : postgres_connection(std::getenv("DATABASE_URL"), "bench") {}

    river::postgres_rows ask(const river::postgres_statement& query, const river::values& values) {
        auto found = run(query, values, ojs::deadline_after(std::chrono::minutes(1)));
        if (found) return std::move(*found);
        std::fprintf(stderr, "river_bench: %s\n", found.error().text.c_str());
        std::exit(1);
    }
};

void work(long long count) {
    connection database;
    for (;;) {
        const river::postgres_rows claimed = database.ask(
            river::sql::claim, {"default", count, "bench", 4194304LL, nullptr, "{}", 0LL, 9223372036854775807LL});
        if (claimed.size() == 0) return;
        river::postgres_array ids, attempts, actions, nulls;
        for (int row = 0; row < claimed.size(); ++row) {
            ids.add(claimed.number(row, 0));
            attempts.add(claimed.number(row, 3));
            actions.add("complete");
            nulls.add_null();
        }
        // A concurrent claim that has seen a job before it was claimed locks its row for a moment, and the statement
        // skips what is locked.
        for (int settled = 0; settled < claimed.size();) {
            settled += database
                           .ask(river::sql::settle, {ids.text(), attempts.text(), actions.text(), nulls.text(),
                                                     nulls.text(), nulls.text(), "bench", "public.river_insert"})
                           .size();
        }
    }
}
}  // namespace

int main(int argc, char** argv) {
    if (argc != 3 || std::getenv("DATABASE_URL") == nullptr) {
        std::fprintf(stderr, "usage: DATABASE_URL=... river_bench LOOPS BATCH\n");
        return 64;
    }
    std::vector<std::thread> loops;
    for (int i = 0; i < std::atoi(argv[1]); ++i) loops.emplace_back(work, std::atoll(argv[2]));
    for (std::thread& each : loops) each.join();
}
