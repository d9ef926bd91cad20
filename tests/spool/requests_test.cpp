// open_spool: what is claimed, and what is not.
#include "spool_dir.hpp"

using namespace spool_test;

namespace {
// What the kernel answers to who asks for a read lease: EAGAIN if it sees a writer, EACCES for another user's file.
int lease_error([[maybe_unused]] const fs::path& file) {
    int out = ENOSYS;
#ifdef F_SETLEASE
    const detail::unique_fd reader(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    out = ::fcntl(reader.get(), F_SETLEASE, F_RDLCK) == 0 ? 0 : errno;
#endif
    return out;
}
}  // namespace

TEST_CASE("spool: links, folders, FIFOs, devices, odd names and other users' files are refused once and kept") {
    for (const bool accept_any_file : {false, true}) {
        CAPTURE(accept_any_file);
        opened_dir dir(accept_any_file);
        const fs::path request = dir.path / "request";
        write_file(dir.path / "outside", noop);
        fs::create_symlink(dir.path / "outside", request / "symlink");
        fs::create_symlink("/etc/passwd", request / "symlink-away");
        fs::create_symlink("nowhere", request / "symlink-broken");
        fs::create_directory(request / "folder");
        REQUIRE(::mkfifo((request / "fifo").c_str(), 0600) == 0);
        fs::create_hard_link(dir.path / "outside", request / "hardlink");
        names refused = {"symlink", "symlink-away", "symlink-broken", "folder", "fifo", "hardlink"};
        for (const std::string& odd : {std::string("new\nline"), std::string("bell\a"), std::string("\x7f"),
                                       std::string("\xff\xfe"), std::string("over\xc0\xaf"), std::string(201, 'x')}) {
            write_file(request / odd, noop);
            refused.push_back(odd);
        }
        if (::mknod((request / "device").c_str(), S_IFCHR | 0600, 0x103) == 0) refused.emplace_back("device");
        if (::geteuid() == 0) {
            write_file(request / "foreign", noop);
            REQUIRE(::chown((request / "foreign").c_str(), 12345, 12345) == 0);
            refused.emplace_back("foreign");
        }
        write_file(request / ".hidden", noop);
        const std::string longest(200, 'y');
        write_file(request / longest, noop);
        make_old(request / longest);

        const job only = dir.fetch_one();
        CHECK(only.id == longest);
        for (int i = 0; i < 3; ++i) CHECK(dir.fetch(10).empty());
        CHECK(dir.event_count(spool_event_kind::refused) == static_cast<int>(refused.size()));
        for (const log_record& each : dir.events()) {
            CHECK(!each.fields[1].value.empty());
            CHECK(!holds(each.fields[0].value, "\n"));
        }
        for (const std::string& name : refused) CHECK(fs::exists(fs::symlink_status(request / name)));
        CHECK(fs::exists(request / ".hidden"));
        CHECK(dir.names("failed").empty());
        CHECK(ack(dir, longest) == settle_result::accepted);
        CHECK(dir.names("done") == names{longest});
    }
}

TEST_CASE("spool: backup, temporary and partial files are refused once, unless accept_backup_names is set") {
    const names side = test::words(
        "a~ #a# a.json.bak a.BAK a.orig a.tmp a.part a.swp a.filepart a.rej a.crdownload a.rpmsave a.dpkg-old "
        "a.ucf-new 4913 sedAb1dEf ~$a.json a.sync-conflict-20260101.json",
        {"a (copy).json", "a (2nd copy).json"});
    const names jobs = test::words("a.1 a.json.1 49130 sed sedate.json a.bak.json (copyright).json part a-tmp");
    for (const bool accept_any_file : {false, true}) {
        for (const bool accept_backup_names : {false, true}) {
            CAPTURE(accept_any_file);
            CAPTURE(accept_backup_names);
            spool_dir dir({}, accept_any_file);
            dir.options.accept_backup_names = accept_backup_names;
            const auto transport = dir.open();
            for (const names& all : {side, jobs})
                for (const std::string& name : all) dir.put(name);
            CHECK(dir.fetch(*transport, 100).size() == jobs.size() + (accept_backup_names ? side.size() : 0));
            CHECK(dir.fetch(*transport, 100).empty());
            CHECK(dir.names("request").size() == (accept_backup_names ? 0 : side.size()));
            CHECK(dir.event_count(spool_event_kind::refused) ==
                  (accept_backup_names ? 0 : static_cast<int>(side.size())));
        }
    }
}

TEST_CASE("spool: a recent file of another user, whose writer is not visible, waits and is logged once") {
    for (const bool accept_any_file : {false, true}) {
        CAPTURE(accept_any_file);
        temporary_folder base;
        spool_dir dir(base.path() / "spool", accept_any_file);
        const as_user ordinary(12345, {base.path()});
        if (!ordinary.is_effective()) return;
        const auto transport = dir.open();
        for (const char* name : {"a", "b"}) {
            const as_user writer(0, {});
            std::ofstream(dir.path / "request" / name) << "{\"type\":\"noop\"";
            fs::last_write_time(dir.path / "request" / name, fs::file_time_type::clock::now() - 4s);
        }
        if (lease_error(dir.path / "request/a") != EACCES) {
            MESSAGE("skipped: this file system has no leases");
            return;
        }
        CHECK(dir.fetch(*transport, 5).empty());
        CHECK(dir.event_count(spool_event_kind::refused) == 1);
        CHECK(holds(dir.events().front().fields[1].value, "user 0 may still be writing the file"));
        {
            const as_user writer(0, {});
            std::ofstream(dir.path / "request/a", std::ios::app) << ",\"args\":[]}";
            make_old(dir.path / "request/a");
        }
        CHECK(dir.fetch_one(*dir.open()).malformed.empty());
    }
}

TEST_CASE("spool: a file that is still being written waits until it is complete") {
    for (const bool accept_any_file : {false, true}) {
        CAPTURE(accept_any_file);
        spool_dir dir({}, accept_any_file);
        dir.options.incomplete_timeout = 1h;
        const auto transport = dir.open();
        const fs::path file = dir.path / "request/a";
        std::ofstream writer(file);
        writer << "{\"type\":\"noop\"" << std::flush;
        CHECK(dir.fetch(*transport).empty());
        writer << ",\"args\":[]}" << std::flush;
        // Whole, but still open for writing: where the kernel reports it, the file waits, and is reported in the end.
        if (lease_error(file) == EAGAIN) {
            CHECK(dir.fetch(*dir.open()).empty());
            CHECK(dir.event_count(spool_event_kind::refused) == 0);
            make_old(file);
            const auto later = dir.open();
            for (int i = 0; i < 2; ++i) CHECK(dir.fetch(*later).empty());
            CHECK(dir.event_count(spool_event_kind::refused) == 1);
        } else {
            MESSAGE("this kernel does not report writers of a file");
        }
        writer.close();
        const auto fresh = dir.open();
        CHECK(dir.fetch_one(*fresh).malformed.empty());
    }
}

TEST_CASE("spool: a malformed file -> failed/ with the reason; after a crash too, if it has no JSON object") {
    const struct {
        std::string text;
        const char* reason;
        std::uintmax_t size = 0;  // of the file, where it is not that of the text
    } rows[] = {{"{", "invalid JSON"},
                {std::string("{\"type\":\"a\0b\",\"args\":[]}", 24), "invalid JSON"},
                {"", "invalid JSON"},
                {"[1,2]", "not a JSON object"},
                {R"({"type":"noop"} trailing)", "invalid JSON"},
                {"{", "longer than", std::uintmax_t{1} << 40},
                {std::string(100000, '[') + std::string(100000, ']'), "not a JSON object"},
                {R"({"args":[]})", "type must be a string"},
                {R"({"type":7,"args":[]})", "type must be a string"},
                {R"({"type":"noop"})", "args is missing"},
                {R"({"type":"noop","args":{}})", "args is not an array"}};
    for (const auto& row : rows) {
        for (const bool killed : {false, true}) {
            const bool is_object = holds(row.reason, "args") || holds(row.reason, "type");
            if (killed && is_object) continue;  // it comes again, with its run counted
            CAPTURE(&row - rows);
            CAPTURE(killed);
            spool_dir dir;
            {
                const auto worker = dir.open();
                const fs::path file = dir.path / "request/bad.json";
                write_file(file, row.text);
                if (row.size != 0) fs::resize_file(file, row.size);
                make_old(file);
                const job claimed = dir.fetch_one(*worker);
                CHECK(claimed.id == "bad");
                CHECK(holds(claimed.malformed, row.reason));
                const job_error why = {"invalid_payload", claimed.malformed, true, "{}"};
                if (!killed) {
                    const auto settled = worker->fail({{{}, "bad"}, why, true, ""}, deadline_after(20s));
                    CHECK((settled && *settled == settle_result::accepted));
                }
            }
            CHECK(dir.fetch(*dir.open(), 5).empty());
            CHECK(dir.owners() == 0);
            CHECK(dir.listing() == (is_object ? "failed/bad.json" : "failed/.about.bad.json failed/bad.json"));
            const std::string about = dir.read(is_object ? "failed/bad.json" : "failed/.about.bad.json");
            CHECK(member(about, "attempt") == "1");
            CHECK(holds(member(about, "error"), row.reason));
            if (row.size != 0) CHECK(fs::file_size(dir.path / "failed/bad.json") == row.size);
            if (row.size == 0 && !is_object) CHECK(dir.read("failed/bad.json") == row.text);
        }
    }
}

TEST_CASE("spool: of two files with the same id, a transport claims one at a time") {
    opened_dir dir;
    dir.put("a", R"({"type":"noop","args":[1],"id":"same"})");
    dir.put("b", R"({"type":"noop","args":[2],"id":"same"})");
    CHECK(dir.fetch(5).size() == 1);
    CHECK(ack(dir, "same") == settle_result::accepted);
    const auto fresh = dir.open();
    CHECK(dir.fetch(*fresh, 5).size() == 1);
    CHECK(ack(*fresh, "same") == settle_result::accepted);
    CHECK(dir.names("done") == names{"a", "b"});
}

TEST_CASE("spool: a job of another queue is left to that queue's workers, even if it is malformed") {
    opened_dir dir;
    const std::string large(100 << 10, 'x');
    const std::string begin = "{\"type\":\"noop\",\"args\":[\"" + large + "\"]";
    dir.put("a", "{\"type\":\"noop\",\"queue\":\"mail\",\"args\":[\"" + large);
    dir.put("b", begin + ",\"queue\":\"mail\"}");
    dir.put("c", begin + ",\"queue\":\"default\"}");
    dir.put("d", begin + "}");
    for (const char* name : {"a", "b", "c", "d"}) make_old(dir.path / "request" / name);
    CHECK(dir.fetch(5).size() == 2);
    CHECK(dir.names("request") == names{"a", "b"});
    dir.worker.queues = {"mail"};
    dir.put("e");
    const auto other = dir.open();
    const std::vector<job> got = dir.fetch(*other, 5);
    REQUIRE(got.size() == 2);
    CHECK(holds(got[0].malformed, "invalid JSON"));
    CHECK(got[1].malformed.empty());
    CHECK(dir.names("request") == names{"e"});
}

TEST_CASE("spool: a stray file in the way of a claim causes one event and blocks no other job") {
    for (const bool accept_any_file : {false, true}) {
        for (const bool folder : {false, true}) {
            CAPTURE(accept_any_file);
            CAPTURE(folder);
            opened_dir dir(accept_any_file);
            const fs::path stray = dir.path / "processing" / dir.names("processing").front() / "a";
            if (folder) fs::create_directories(stray / "x");
            if (!folder) write_file(stray, "put there by somebody");
            dir.put("a");
            CHECK(dir.claim("b").id == "b");
            for (int i = 0; i < 3; ++i) CHECK(dir.fetch().empty());
            CHECK(dir.event_count(spool_event_kind::refused) == 1);
            CHECK(fs::exists(folder ? stray / "x" : stray));
            const auto other = dir.open();
            CHECK(dir.fetch_one(*other).id == "a");
        }
    }
}

TEST_CASE("spool: a FETCH cancelled between claims returns the jobs already claimed and claims no more") {
    opened_dir dir;
    for (const char* name : {"a", "b", "c"}) dir.put(name);
    CHECK(!dir.transport->fetch(dir.asking(), steady_clock::now() - 1s));  // a deadline that has passed
    fetch_request request = dir.asking(3);
    int asked = 0;
    request.should_send = [&] { return ++asked <= 2; };
    const auto some = dir.transport->fetch(request, deadline_after(10s));
    REQUIRE(some);
    CHECK(some->size() == 1);
    CHECK(dir.names("request").size() == 2);
    CHECK(dir.owners() == 1);
}

TEST_CASE("spool: a file replaced or changed between examination and claim is not claimed") {
    for (const bool exchanged : {true, false}) {
        CAPTURE(exchanged);
        opened_dir dir;
        dir.put("a", R"({"type":"seen","args":[]})");
        fetch_request request = dir.asking();
        int asked = 0;
        request.should_send = [&] {
            if (++asked != 2) return true;  // before it looks at a file; then between that and the claim
            if (exchanged) dir.put("a", R"({"type":"other","args":[]})");
            if (!exchanged) write_file(dir.path / "request/a", R"({"type":"longer","args":[]})");
            return true;
        };
        CHECK(dir.transport->fetch(request, deadline_after(10s))->empty());
        CHECK(dir.names("request") == names{"a"});
        CHECK(dir.fetch_one().type == (exchanged ? "other" : "longer"));
    }
}
