// open_spool: a job on its way through the folders, its runs and checkpoints; any file; putting jobs in.
#include "spool_dir.hpp"

using namespace spool_test;

TEST_CASE("spool: the file of a completed job in done/ contains the result and every original member") {
    opened_dir dir;
    CHECK(dir.fetch().empty());
    dir.put("a.json",
            R"({"type":"text.count","args":[12345678901234567890, 1.10],"x_unknown":{"big":98765432109876543210},)"
            R"("meta":{"trace":"t1"}})");
    const job claimed = dir.fetch_one();
    CHECK(claimed.id + " " + claimed.type + " " + claimed.queue + " " + claimed.args_json ==
          "a text.count default [12345678901234567890, 1.10]");
    CHECK(claimed.attempt == 1);
    CHECK(claimed.max_attempts == 3);
    CHECK(claimed.malformed.empty());
    CHECK(member(claimed.meta_json, "trace") == "\"t1\"");
    CHECK(spool_path(claimed).front() == '/');
    CHECK(fs::exists(spool_path(claimed)));
    CHECK(dir.listing().empty());
    CHECK(dir.fetch().empty());
    CHECK(ack(dir, "a", "{\"words\":18446744073709551615}") == settle_result::accepted);
    CHECK(dir.listing() == "done/a.json");
    const std::string done = dir.read("done/a.json");
    const std::pair<const char*, const char*> members[] = {{"result", "{\"words\":18446744073709551615}"},
                                                           {"state", "\"completed\""},
                                                           {"args", "[12345678901234567890, 1.10]"},
                                                           {"x_unknown", "{\"big\":98765432109876543210}"},
                                                           {"meta", "{\"trace\":\"t1\"}"}};
    for (const auto& [name, value] : members) CHECK(member(done, name) == value);
    CHECK(!fs::exists(spool_path(claimed)));
}

TEST_CASE("spool: files are claimed in the order of their names, including files added later") {
    opened_dir dir;
    for (const char* name : {"5-c.json", "5-a.json", "9-z.json", "5-b.json"}) dir.put(name);
    CHECK(spool_enqueue(dir.path, {"noop", "[]", "default", 0, "0-now.json"}).value_or("") == "0-now");
    CHECK(dir.fetch_one().id == "0-now");
    CHECK(dir.fetch_one().id == "5-a");
#if OJS_SHUTDOWN_USE_INOTIFY
    CHECK(dir.claim("1-late.json").id == "1-late");
#endif
    const std::vector<job> rest = dir.fetch(2);
    REQUIRE(rest.size() == 2);
    CHECK(rest[0].id == "5-b");
    CHECK(rest[1].id == "5-c");
    CHECK(dir.fetch_one().id == "9-z");
}

TEST_CASE("spool: a failed job waits for its retry delay, and moves to failed/ after its last attempt") {
    for (const bool accept_any_file : {false, true}) {
        CAPTURE(accept_any_file);
        spool_dir dir({}, accept_any_file, {0ms, 1h});
        const std::string noted = accept_any_file ? ".about." : "";  // before the name of the file that has it
        const std::string text = R"({"type":"noop","args":[],"keep":1.50,"meta":{"m":1}})";
        const std::string& bytes = accept_any_file ? odd_bytes : text;
        {
            const auto transport = dir.open();
            dir.claim(*transport, "a", bytes);
            CHECK(fail(*transport, "a", boom(false)) == settle_result::accepted);
            const std::string failed = dir.read("failed/" + noted + "a");
            for (const char* part : {R"("attempt":1)", R"("message":"boom \"x\"")", R"("code":"handler_error")",
                                     R"("details":{"n":1})", R"("retryable":false)"})
                CHECK_MESSAGE(holds(failed, part), failed);
            if (!accept_any_file) CHECK(member(failed, "state") == "\"discarded\"");
            CHECK(dir.claim(*transport, "c", bytes).attempt == 1);
            CHECK(fail(*transport, "c", boom(), "{\"at\":7}") == settle_result::accepted);
            const job second = dir.fetch_one(*transport);
            CHECK(second.attempt == 2);
            CHECK(member(second.meta_json, "checkpoint") == "{\"at\":7}");
            if (!accept_any_file) CHECK(member(second.meta_json, "m") == "1");
            CHECK(fail(*transport, "c") == settle_result::accepted);
            CHECK(dir.fetch(*transport).empty());  // an hour from now
        }
        dir.options.retry_delays = {0ms, 0ms};
        CHECK(dir.fetch(*dir.open()).empty());  // the delay was decided when it failed
        std::string waiting = dir.read("request/" + noted + "c");
        CHECK(member(waiting, "attempt") == "2");
        if (!accept_any_file) CHECK(member(waiting, "state") == "\"retryable\"");
        waiting.replace(waiting.find("3600000"), 7, "0");  // its end is an hour away, as by a clock set back
        write_file(dir.path / "request" / (noted + "c"), waiting);
        const auto last = dir.open();
        CHECK(dir.fetch_one(*last).attempt == 3);
        CHECK(fail(*last, "c") == settle_result::accepted);
        CHECK(dir.names("failed") == names{"a", "c"});
        CHECK(dir.names("request").empty());
        const std::string failed = dir.read("failed/" + noted + "c");
        CHECK(member(failed, "attempt") == "3");
        CHECK(member(member(failed, "error"), "message") == "\"boom \\\"x\\\"\"");
        if (accept_any_file) CHECK(dir.read("failed/c") == odd_bytes);
        if (!accept_any_file) CHECK(member(failed, "keep") + member(failed, "spool") == "1.50");
    }
}

TEST_CASE("spool: a job's file is removed or renamed -> its report is gone; with accept_any_file one ACK is accepted") {
    opened_dir dir(true);
    for (const bool renamed : {false, true}) {
        CAPTURE(renamed);
        const fs::path own = spool_path(dir.claim("proof", odd_bytes));
        if (renamed) fs::rename(own, dir.path / "elsewhere");
        if (!renamed) fs::remove(own);
        CHECK(ack(dir, "proof") == settle_result::accepted);
        CHECK_FALSE(fs::exists(own.parent_path() / ".about.proof"));
        CHECK(ack(dir, "proof") == settle_result::gone);
    }
    // One that somebody else has taken over, with all that belongs to it, is not.
    const fs::path own = spool_path(dir.claim("proof", odd_bytes));
    fs::remove(own.parent_path() / ".about.proof");
    fs::remove(own);
    CHECK(ack(dir, "proof") == settle_result::gone);
    opened_dir jobs;
    fs::remove(spool_path(jobs.claim("removed")));
    CHECK(fail(jobs, "removed", boom(false)) == settle_result::gone);
    CHECK(jobs.listing().empty());
}

TEST_CASE("spool: a job of 1 MiB stays valid after failures are recorded in it; one byte more is malformed") {
    for (const std::size_t more : {0, 1}) {
        CAPTURE(more);
        opened_dir dir(false, {0ms, 0ms});
        const std::string head = R"({"type":"noop","max_attempts":3,"args":[")";
        const std::string text = head + std::string((1 << 20) + more - head.size() - 3, 'x') + "\"]}";
        const job first = dir.claim("big", text);
        CHECK(first.malformed.empty() == (more == 0));
        if (more != 0) continue;
        const std::string details = "{\"trace\":\"" + std::string(99999, 'z') + "\"}";
        CHECK(fail(dir, "big", {"boom", std::string(60 << 10, '\x01'), true, details}) == settle_result::accepted);
        const auto dies = dir.open();
        CHECK(dir.fetch_one(*dies).attempt == 2);
        static_cast<void>(fail(*dies, "big"));
        CHECK(dir.fetch_one(dir).attempt == 3);
        CHECK(fail(dir, "big") == settle_result::accepted);
        fs::rename(dir.path / "failed/big", dir.path / "request/big");
        const job by_hand = dir.fetch_one();
        CHECK(by_hand.attempt == 4);
        CHECK(by_hand.malformed.empty());
    }
}

TEST_CASE("spool_enqueue: an invalid job or file name is refused, and no file is created") {
    opened_dir dir;
    REQUIRE(spool_enqueue(dir.path, {"noop", "[]", "default", 0, "taken"}));
    std::vector<spool_job> bad = {{"", "[]", "default", 0, ""},      {"noop", "{}", "default", 0, ""},
                                  {"noop", "", "default", 0, ""},    {"noop", "[1,]", "default", 0, ""},
                                  {"noop", "[]", "default", -1, ""}, {"noop", "[]", "", 0, ""}};
    std::vector<std::string> bad_names = {std::string("a\0b", 3), std::string(201, 'x')};
    for (const char* each : {"../outside", "..", ".hidden", "a/b", "a\nb", "\xff", "taken"})
        bad_names.emplace_back(each);
    for (const std::string& name : bad_names) bad.push_back({"noop", "[]", "default", 0, name});
    for (const spool_job& each : bad) {
        CAPTURE(each.name);
        CHECK(test::code_of(spool_enqueue(dir.path, each)) == errc::invalid_argument);
    }
    CHECK(dir.listing() == "request/taken");
    CHECK(!fs::exists(dir.path / "outside"));
}

TEST_CASE("spool_enqueue: the file of a killed call is removed, unless it is recent or open for writing") {
    spool_dir dir;
    { const auto makes_it = dir.open(); }
    const std::string left = ".new.0123456789abcdef";
    const std::string open = ".new.0123456789abcde0";
    const std::string young = ".new.0123456789abcde1";
    for (const std::string& name : {left, open, young, std::string(".new.mine")}) {
        write_file(dir.path / "request" / name, "{");
        if (name != young) make_old(dir.path / "request" / name);
    }
    fs::last_write_time(dir.path / "request" / young, fs::file_time_type::clock::now() + 1h);
    const std::ofstream writer(dir.path / "request" / open, std::ios::app);
    CHECK(dir.fetch(*dir.open()).empty());
    CHECK(dir.hidden("request") == names{open, young, ".new.mine"});
}

TEST_CASE("spool: a job over 1 MiB is not enqueued, and a FAIL drops a checkpoint that would make the job unreadable") {
    spool_dir none;
    spool_job job{"noop", "[\"" + std::string(1 << 20, 'x') + "\"]", "default", 0, ""};
    CHECK(test::code_of(spool_enqueue(none.path, job)) == errc::invalid_argument);
    const std::string large = "{\"type\":\"noop\",\"args\":[\"" + std::string(900 << 10, 'x') + "\"]}";
    const std::string bad_states[] = {"{broken", "\"" + std::string(1 << 20, 'y') + "\""};
    for (const bool accept_any_file : {false, true}) {
        for (const std::string& state : bad_states) {
            CAPTURE(accept_any_file);
            opened_dir dir(accept_any_file);
            dir.claim("a", large);
            CHECK(fail(dir, "a", boom(), state) == settle_result::accepted);
            CHECK(dir.fetch_one().attempt == 2);
        }
    }
}

TEST_CASE("spool: inspect() reports an unusable directory, and does not create a missing directory") {
    const auto inspect = ojs::spool().inspect;
    spool_dir dir;
    make_folder(dir.path);
    CHECK(inspect(dir.path.string()).empty());
    const std::string none = (dir.path / "none").string();
    for (int again = 0; again < 2; ++again) CHECK(inspect(none).empty());
    for (const char* address : {"/dev/null/x", ""}) CHECK(holds(inspect(address), "cannot be used"));
}
