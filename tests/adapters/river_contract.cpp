// ojs_river.hpp put through what every transport must do. river_test.py starts the server and says
// in DATABASE_URL where a database with River's tables is, by TCP, and in OJS_TEST_PORT at which port.
#define OJS_SHUTDOWN_IMPLEMENTATION 1  // it uses what that hides
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS

#include "contract/doctest.hpp"
#include "contract/lone_worker.hpp"
#include "contract/relay.hpp"
#include "ojs_river.hpp"

namespace {
using ojs::detail::river::postgres_rows;
using ojs::detail::river::postgres_statement;
using ojs::detail::river::postgres_value;
using transport_contract::job_state;
using transport_contract::jobs;
using transport_contract::new_job;
using transport_contract::soon;
using transport_contract::traits;

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// A claim or a report, sent as a prepared statement; not its preparation.
bool is_claim_or_report(const std::string& request) {
    using namespace std::string_literals;
    return request.find("\0claim\0"s) != std::string::npos || request.find("\0settle\0"s) != std::string::npos;
}

// Loses responses to claims and reports.
struct losing_relay : transport_contract::relay {
    losing_relay() : relay(static_cast<std::uint16_t>(std::stoi(variable("OJS_TEST_PORT"))), is_claim_or_report) {}
    std::string url() const { return variable("DATABASE_URL") + " port=" + std::to_string(port()); }
};

struct connection : ojs::detail::river::postgres_connection {
    connection() : postgres_connection(variable("DATABASE_URL"), "test") {}

    postgres_rows ask(const char* sql, const std::vector<postgres_value>& values = {}) {
        ojs::result<postgres_rows> found = run(postgres_statement{"", sql}, values, soon());
        if (!found) throw std::runtime_error(found.error().text);
        return std::move(*found);
    }
    void insert(const char* queue, long long count, long long max_attempts = 1) {
        ask("INSERT INTO river_job (kind, args, queue, max_attempts)"
            " SELECT 'any', '{}', $1, $3::int FROM generate_series(1, $2::int)",
            {queue, count, max_attempts});
    }
};

class river_subject : public transport_contract::subject {
  public:
    traits can() const override {
        traits out;
        out.first_in_first_out = out.requeue_spares_attempt = out.knows_holder = true;
        out.jobs_outlive_worker = out.counts_lost_runs = out.passes_checkpoints = true;
        out.largest_args = 200 * 1024;
        // Not keeps_args_text and holds_nul: jsonb; not any_type: a kind has 1 to 127 characters.
        out.tells_of_work = true;
        return out;
    }
    // A lease short enough for a dead worker's jobs to come back in time.
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) override {
        const auto out = transport_contract::share(ojs::river_transport::create(relay_.url()));
        ojs::worker_identity short_lived = as;
        short_lived.visibility_timeout = std::chrono::milliseconds(300);
        const auto ready = out->heartbeat({{&short_lived, nullptr}, "running", {}, {}, false}, soon());
        if (!ready) throw std::runtime_error(ready.error().text);
        prepare(*out, as);
        return out;
    }

    std::string push(const new_job& what) override {
        return database_
            .ask(
                "WITH added AS (INSERT INTO river_job (kind, args, queue, max_attempts)"
                " VALUES ($1, $2::jsonb, $3, $4::bigint) RETURNING id)"
                " SELECT id, pg_notify(current_schema() || '.river_insert', json_build_object('queue', $3)::text)"
                " FROM added",
                {what.type, what.args_json, what.queue, what.max_attempts})
            .text(0, 0);
    }
    job_state state_of(const std::string& id) override {
        const postgres_rows found = database_.ask("SELECT state FROM river_job WHERE id::text = $1", {id});
        if (found.size() == 0) return job_state::absent;
        const std::string state = found.text(0, 0);
        if (state == "running") return job_state::running;
        if (state == "completed") return job_state::completed;
        return state == "discarded" ? job_state::discarded : job_state::waiting;
    }
    void end_retry_delays() override {
        database_.ask(
            "UPDATE river_job SET state = 'available', scheduled_at = now()"
            " WHERE state = 'retryable' OR state = 'available' AND scheduled_at > now()");
    }
    // The server's processes that serve transports, and the one that would start more. False: they are another user's.
    bool freeze() override {
        const postgres_rows found = database_.ask(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'ojs %' UNION"
            " SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int");
        for (int row = 0; row < found.size(); ++row) {
            const pid_t each = static_cast<pid_t>(found.number(row, 0));
            if (!transport_contract::stand_still(each)) return false;
            frozen_.push_back(each);
        }
        return true;
    }
    void thaw() override {
        for (const pid_t each : frozen_) ::kill(each, SIGCONT);
        frozen_.clear();
    }
    bool lose_answers(int count) override {
        relay_.lose(count);
        return true;
    }

  private:
    // What a relay loses must not be the answer to a first use, which prepares a statement and claims nothing.
    static void prepare(ojs::transport& wire, ojs::worker_identity as) {
        as.queues = {"nobody pushes here"};
        ojs::fetch_request request;
        request.worker = &as;
        if (const auto none = wire.fetch(request, soon()); !none) throw std::runtime_error(none.error().text);
    }

    losing_relay relay_;
    connection database_;
    std::vector<pid_t> frozen_;
};

struct lone_worker : transport_contract::lone_worker {
    explicit lone_worker(const char* queue, const std::string& url = variable("DATABASE_URL"))
        : transport_contract::lone_worker(transport_contract::share(ojs::river_transport::create(url)), queue) {
        identity.visibility_timeout = std::chrono::seconds(30);
    }
};
}  // namespace

TEST_CASE("river_transport: a cancelled FETCH does not cancel a concurrent FETCH") {
    lone_worker worker("nobody pushes here either");
    std::atomic<int> fetching{2};
    std::atomic<int> failed{0};
    const auto fetch = [&] {
        for (int i = 0; i < 50; ++i) failed += worker.fetch(1) ? 0 : 1;
        --fetching;
    };
    std::thread first(fetch), second(fetch);
    while (fetching > 0) {
        const auto unwanted = worker.wire->fetch({{&worker.identity, [] { return false; }}, 1, {}}, soon());
        REQUIRE_FALSE(unwanted);
        CHECK(unwanted.error().code == ojs::errc::cancelled);
    }
    first.join();
    second.join();
    CHECK(failed == 0);
}

TEST_CASE("river_transport: a report that timed out is accepted again, even if an earlier batch settled the job") {
    connection holder;
    lone_worker worker("late");
    for (int round = 0; round < 5; ++round) {
        holder.insert("late", 2);
        const jobs both = worker.await(2);
        holder.ask("BEGIN");
        holder.ask("LOCK TABLE river_job IN EXCLUSIVE MODE");
        test::event begun;
        std::thread patient([&] {
            begun.set();
            const auto answer = worker.try_ack(both[0], ojs::deadline_after(std::chrono::seconds(2)));
            CHECK((!answer || *answer == ojs::settle_result::accepted));
        });
        static_cast<void>(begun.wait());
        // In one statement with the other, or not.
        CHECK_FALSE(worker.try_ack(both[1], ojs::deadline_after(std::chrono::milliseconds(100))));
        holder.ask("ROLLBACK");
        patient.join();
        CHECK(worker.ack(both[1]) == "accepted");
    }
}

TEST_CASE("river_transport: exactly one of a concurrent ACK and FAIL of the same job is accepted") {
    connection database;
    lone_worker worker("race");
    database.insert("race", 40);
    for (int round = 0; round < 20; ++round) {
        const jobs both = worker.await(2);  // with two jobs held, a report waits for a second one
        std::string failed;
        std::thread fails([&] { failed = worker.fail(both[0]); });
        const std::string acked = worker.ack(both[0]);
        fails.join();
        CAPTURE(failed);
        CHECK(acked == (failed == "accepted" ? "gone" : "accepted"));
        CHECK(failed == (acked == "accepted" ? "gone" : "accepted"));
        CHECK(worker.ack(both[1]) == "accepted");
    }
}

TEST_CASE("river_transport: the jobs of a lost FETCH response are requeued without using an attempt") {
    connection database;
    losing_relay wire;
    lone_worker worker("lost", wire.url());
    REQUIRE(worker.fetch(2));  // prepares the statement
    database.insert("lost", 2);
    wire.lose(1);
    CHECK_FALSE(worker.fetch(2));
    for (const ojs::job& each : worker.await(2)) {
        CHECK(each.attempt == 1);
        CHECK(worker.ack(each) == "accepted");
    }
}

TEST_CASE("river_transport: a repeated report is accepted and does not settle the next run") {
    connection database;
    losing_relay wire;
    lone_worker worker("again", wire.url());
    database.insert("again", 1, 2);
    const ojs::job first = worker.fetch_one();
    const ojs::job_error why = {"handler_error", "no", true, ""};
    wire.lose(1);
    CHECK_FALSE(worker.try_fail(first, why));
    CHECK(worker.renews(first));  // the job is no longer ours, and its report must not be dropped
    database.ask("UPDATE river_job SET state = 'available', scheduled_at = now() WHERE queue = 'again'");
    CHECK(worker.fetch()->empty());  // claimed, and given back once the report is settled
    CHECK(*worker.try_fail(first, why) == ojs::settle_result::accepted);
    CHECK(worker.fetch_one().attempt == 2);
    CHECK(*worker.try_fail(first, why) == ojs::settle_result::accepted);
    const postgres_rows row =
        database.ask("SELECT state, array_to_string(errors, ',') FROM river_job WHERE queue = 'again'");
    CHECK(row.text(0, 0) == "discarded");
    CHECK(row.text(0, 1).find("\"attempt\": 1") != std::string::npos);
    CHECK(row.text(0, 1).find("\"attempt\": 2") != std::string::npos);
}

TEST_CASE("river_transport: the transport contract passes") {
    const auto on = std::make_shared<river_subject>();
    CHECK(transport_contract::check_all([&] { return on; }).empty());
}
