// open_spool: a job on its way through the folders, its runs and checkpoints; any file; putting jobs in.
#include "spool_dir.hpp"

using namespace spool_test;

TEST_CASE("spool: the file of a completed job in done/ contains the result and every original member") {
    opened_dir dir;
    CHECK(dir.fetch().empty());
    dir.put(
        "a.json",
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

TEST_CASE(
    "spool: a requeue, or an ACK without a stored result, leaves the file unchanged and counts no run") {
    for (const bool any_file : {false, true}) {
        CAPTURE(any_file);
        opened_dir dir(any_file);
        const std::string name = "4-200-prove.json";
        const std::string text = "  {\"type\" : \"noop\", \"args\":[],\n\"id\":\"my-id\"}\n\n";
        const std::string& bytes = any_file ? odd_bytes : text;
        const std::string id = any_file ? name : "my-id";
        const auto inode = [&](const std::string& file) {
            struct stat about {};
            REQUIRE(::stat((dir.path / file).c_str(), &about) == 0);
            return about.st_ino;
        };
        dir.put(name, bytes);
        const ino_t before = inode("request/" + name);
        for (int i = 0; i < 3; ++i) {
            const job claimed = dir.fetch_one();
            CHECK(claimed.id + " " + claimed.type + " " + claimed.queue ==
                  id + (any_file ? " file" : " noop") + " default");
            CHECK(claimed.attempt == 1);
            CHECK(claimed.malformed.empty());
            CHECK(read_file(spool_path(claimed)) == bytes);
            const std::string result = any_file ? "{\"n\":1}" : "";  // which no file of any kind can hold
            CHECK((i < 2 ? requeue(dir, id) : ack(dir, id, result)) == settle_result::accepted);
            const std::string file = (i < 2 ? "request/" : "done/") + name;
            CHECK(dir.listing() == file);
            CHECK(dir.read(file) == bytes);
            CHECK(inode(file) == before);
        }
        CHECK(ack(dir, id) == settle_result::gone);
    }
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
    for (const bool any_file : {false, true}) {
        CAPTURE(any_file);
        spool_dir dir({}, any_file, {0ms, 1h});
        const std::string noted = any_file ? ".about." : "";  // before the name of the file that has it
        const std::string text = R"({"type":"noop","args":[],"keep":1.50,"meta":{"m":1}})";
        const std::string& bytes = any_file ? odd_bytes : text;
        {
            const auto transport = dir.open();
            dir.claim(*transport, "a", bytes);
            CHECK(fail(*transport, "a", boom(false)) == settle_result::accepted);
            const std::string failed = dir.read("failed/" + noted + "a");
            for (const char* part :
                 {R"("attempt":1)", R"("message":"boom \"x\"")", R"("code":"handler_error")",
                  R"("details":{"n":1})", R"("retryable":false)"})
                CHECK_MESSAGE(holds(failed, part), failed);
            if (!any_file) CHECK(member(failed, "state") == "\"discarded\"");
            CHECK(dir.claim(*transport, "c", bytes).attempt == 1);
            CHECK(fail(*transport, "c", boom(), "{\"at\":7}") == settle_result::accepted);
            for (int i = 0; i < 2; ++i) {  // handed back in its second run, it comes again as its second
                const job second = dir.fetch_one(*transport);
                CHECK(second.attempt == 2);
                CHECK(member(second.meta_json, "checkpoint") == "{\"at\":7}");
                if (!any_file) CHECK(member(second.meta_json, "m") == "1");
                CHECK(*transport->load_checkpoint("c", deadline_after(1s)) == "{\"at\":7}");
                CHECK((i == 0 ? requeue(*transport, "c") : fail(*transport, "c")) == settle_result::accepted);
            }
            CHECK(dir.fetch(*transport).empty());  // an hour from now
        }
        dir.options.retry_delays = {0ms, 0ms};
        CHECK(dir.fetch(*dir.open()).empty());  // the delay was decided when it failed
        std::string waiting = dir.read("request/" + noted + "c");
        CHECK(member(waiting, "attempt") == "2");
        if (!any_file) CHECK(member(waiting, "state") == "\"retryable\"");
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
        if (any_file) CHECK(dir.read("failed/c") == odd_bytes);
        if (!any_file) CHECK(member(failed, "keep") + member(failed, "spool") == "1.50");
    }
}

TEST_CASE(
    "spool: a job's file was removed or renamed -> its reports return gone, but any_file accepts its first "
    "ACK") {
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
    CHECK(checkpoint(jobs, "removed", "1") == settle_result::gone);
    CHECK(jobs.listing().empty());
}

TEST_CASE(
    "spool: with any_file, another worker runs a file just before the claim -> the run that it counted is "
    "kept") {
    spool_dir dir({}, true, {0ms, 1h});
    const auto looks = dir.open();
    const auto runs = dir.open();
    dir.put("proof", odd_bytes);
    const auto run = [&] {
        CHECK(dir.fetch_one(*runs).attempt == 1);
        CHECK(fail(*runs, "proof", boom(), "{\"page\":41}") == settle_result::accepted);
    };
    CHECK(dir.fetch_disturbed(*looks, run) == 0);
    CHECK(dir.listing() == "request/.about.proof request/proof");
    const auto fresh = dir.open();
    const job again = dir.fetch_one(*fresh);
    CHECK(again.attempt == 2);
    CHECK(member(again.meta_json, "checkpoint") == "{\"page\":41}");
}

TEST_CASE(
    "spool: a name is taken -> no file is overwritten in any folder, and the job keeps its id and its runs") {
    std::string umlauts;
    while (umlauts.size() < 200) umlauts += "\xc3\xa4";
    const std::string other = R"({"type":"noop","args":[],"queue":"other"})";
    for (const bool any_file : {false, true}) {
        for (const std::string& name : {std::string("a"), std::string(200, 'n'), umlauts}) {
            CAPTURE(any_file);
            CAPTURE(name);
            opened_dir dir(any_file, {0ms, 0ms, 0ms, 0ms});
            for (const char* folder : {"done", "failed"})
                write_file(dir.path / folder / name, "there before");
            std::int64_t attempt = 1;
            dir.put(name);
            for (int i = 0; i < 5; ++i) {  // handed back, failed, dead, failed, failed for good
                const auto transport = dir.open();
                const job got = dir.fetch_one(*transport);
                CHECK(got.id == name);
                CHECK(got.attempt == attempt);
                dir.put(name, other);
                if (i == 0) CHECK(requeue(*transport, name) == settle_result::accepted);
                if (i == 1 || i > 2) CHECK(fail(*transport, name, boom(i != 4)) == settle_result::accepted);
                attempt += i == 0 ? 0 : 1;
                CHECK(dir.read("request/" + name) == other);
                if (any_file) fs::remove(dir.path / "request" / name);  // it would be first
            }
            CHECK(dir.names("failed").size() == 2);
            dir.put(name);
            const auto transport = dir.open();
            CHECK(dir.fetch_one(*transport).attempt == 1);  // another job
            CHECK(ack(*transport, name) == settle_result::accepted);
            CHECK(dir.names("done").size() == 2);
            for (const char* folder : {"done/", "failed/"}) CHECK(dir.read(folder + name) == "there before");
        }
    }
}

TEST_CASE(
    "spool: a job of 1 MiB stays valid with the members added by failures; one byte more is malformed") {
    for (const std::size_t more : {0, 1}) {
        CAPTURE(more);
        opened_dir dir(false, {0ms, 0ms});
        const std::string head = R"({"type":"noop","max_attempts":3,"args":[")";
        const std::string text = head + std::string((1 << 20) + more - head.size() - 3, 'x') + "\"]}";
        const job first = dir.claim("big", text);
        CHECK(first.malformed.empty() == (more == 0));
        if (more != 0) continue;
        const std::string details = "{\"trace\":\"" + std::string(99999, 'z') + "\"}";
        CHECK(fail(dir, "big", {"boom", std::string(60 << 10, '\x01'), true, details}) ==
              settle_result::accepted);
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

TEST_CASE(
    "spool_enqueue: a leftover file of a killed call is removed, unless it is new or open for writing") {
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

TEST_CASE("spool_enqueue: 100 calls from four threads all add their job") {
    spool_dir dir;
    std::atomic<int> put{0};
    test::at_once(4, [&](int) {
        for (int k = 0; k < 25; ++k)
            put += spool_enqueue(dir.path.string(), {"noop", "[]", "default", 0, ""}) ? 1 : 0;
    });
    CHECK(put == 100);
    CHECK(dir.names("request").size() == 100);
}

TEST_CASE("spool: a worker does not start with a spool: URL whose directory is unusable") {
    worker_options options;
    options.log.level = log_level::off;
    options.transports.add(ojs::spool());
    for (const std::string& unusable : {std::string(), std::string("a\0b", 3), std::string("/dev/null")}) {
        CAPTURE(unusable);
        options.url = "spool:" + unusable;
        worker own(options);
        own.register_handler("noop", [](job_context&) {});
        const auto started = own.start();
        REQUIRE(!started);
        CHECK(holds(started.error().text, ": spool: "));
    }
}

TEST_CASE(
    "spool: a job or checkpoint that could not be read again is refused, and a FAIL drops the checkpoint") {
    spool_dir none;
    spool_job job{"noop", "[\"" + std::string(1 << 20, 'x') + "\"]", "default", 0, ""};
    CHECK(test::code_of(spool_enqueue(none.path, job)) == errc::invalid_argument);
    const std::string large = "{\"type\":\"noop\",\"args\":[\"" + std::string(900 << 10, 'x') + "\"]}";
    const std::pair<std::string, int> bad_states[] = {{"{broken", 0},
                                                      {"\"" + std::string(1 << 20, 'y') + "\"", 413}};
    for (const bool any_file : {false, true}) {
        for (const auto& [state, status] : bad_states) {
            CAPTURE(any_file);
            opened_dir dir(any_file);
            dir.claim("a", large);
            const auto saved = dir.transport->save_checkpoint({"a", state}, deadline_after(5s));
            REQUIRE(!saved);
            CHECK(saved.error().http_status == status);
            CHECK(fail(dir, "a", boom(), state) == settle_result::accepted);
            CHECK(dir.fetch_one().attempt == 2);
        }
    }
}

TEST_CASE("spool: inspect() reports a missing or unusable directory and does not create it") {
    const auto inspect = ojs::spool().inspect;
    spool_dir dir;
    make_folder(dir.path);
    CHECK(inspect(dir.path.string()).empty());
    const std::string none = (dir.path / "none").string();
    for (const std::string& address : {none, none, std::string("/dev/null/x"), std::string()}) {
        const std::vector<finding> found = inspect(address);
        REQUIRE(found.size() == 1);
        CHECK(found[0].id == (address == none ? "spool-missing" : "spool-unusable"));
        CHECK(found[0].severity == (address == none ? severity::warning : severity::error));
        if (address == none) CHECK(holds(found[0].problem, "No such file"));
    }
}
