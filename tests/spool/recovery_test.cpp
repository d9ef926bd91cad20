// open_spool: dead workers, full and read-only disks, and folders that are removed.
#include <sys/mount.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

#include "processes.hpp"
#include "spool_dir.hpp"

using namespace spool_test;

TEST_CASE("spool: the job of a dead worker is requeued with its run counted, and a live worker keeps its job") {
    for (const bool accept_any_file : {false, true}) {
        CAPTURE(accept_any_file);
        spool_dir dir({}, accept_any_file, {0ms});
        const auto alive = dir.open();
        dir.claim(*alive, "a");
        dir.put("b");
        for (int run = 1; run <= 2; ++run) {
            const auto dead = dir.open();
            const job claimed = dir.fetch_one(*dead);
            CHECK(claimed.id == "b");
            CHECK(claimed.attempt == run);
            CHECK(dir.owners() == 2);
        }
        CHECK(dir.owners() == 2);
        const auto other = dir.open();
        CHECK(dir.fetch(*other, 5).empty());  // both runs are used up
        CHECK(dir.names("failed") == names{"b"});
        CHECK(holds(dir.read(accept_any_file ? "failed/.about.b" : "failed/b"), "worker_lost"));
        CHECK(dir.event_count(spool_event_kind::recovered) == 2);
        CHECK(dir.owners() == 2);  // alive and other
        CHECK(ack(*alive, "a") == settle_result::accepted);
    }
}

TEST_CASE("spool: while a worker recovers a dead worker's folder, another worker leaves that folder alone") {
    spool_dir dir({}, false, {0ms});
    dir.leave_dead_worker({{"a", noop}, {".claim.a", ""}, {"b", noop}, {".claim.b", ""}});
    const auto recover_by = [&](transport& by) {
        fetch_request request = dir.asking();
        request.should_send = [asked = 0]() mutable { return ++asked == 1; };  // and not once more, to claim
        static_cast<void>(by.fetch(request, deadline_after(10s)));
    };
    const auto other = dir.open();
    dir.options.log = [&, note = dir.options.log](const log_record& event) {
        note(event);
        if (dir.event_count(spool_event_kind::recovered) != 1) return;
        recover_by(*other);
        CHECK(dir.names("request").size() == 1);
    };
    recover_by(*dir.open());
    CHECK(dir.names("request") == names{"a", "b"});
    CHECK(dir.event_count(spool_event_kind::recovered) == 2);
}

TEST_CASE("spool: a settled job of a dead worker that cannot be moved to done/ is moved later") {
    spool_dir dir;
    const fs::path dead =
        dir.leave_dead_worker({{"a", noop}, {".claim.a", ""}, {".done.a", R"({"type":"noop","args":[],"result":1})"}});
    const auto transport = dir.open();
    // Not even root can move anything into an immutable folder. Some file systems have none.
    const auto change = [&](const std::string& flag) {
        return std::system(("chattr " + flag + " " + (dir.path / "done").string() + " 2>&1").c_str()) == 0;
    };
    if (!change("+i")) {
        MESSAGE("skipped: no folder can be made immutable here");
        return;
    }
    for (int i = 0; i < 3; ++i) CHECK(transport->fetch(dir.asking(), deadline_after(10s))->empty());
    CHECK(fs::exists(dead / ".done.a"));
    CHECK(change("-i"));
    CHECK(dir.fetch(*transport).empty());
    CHECK(dir.names("done") == names{"a"});
    CHECK(holds(dir.read("done/a"), "result"));
    CHECK(!fs::exists(dead));
}

TEST_CASE("spool: an unclaimed file in a dead worker's folder moves to failed/ without a run") {
    for (const bool accept_any_file : {false, true}) {
        CAPTURE(accept_any_file);
        spool_dir dir({}, accept_any_file);
        const std::string payout = R"({"type":"payout","args":[1000000]})";
        {
            const auto dead = dir.open();
            dir.put("a");
            const std::string path = spool_path(dir.fetch_one(*dead));
            const fs::path beside = fs::path(path).parent_path();
            write_file(path + ".out", payout);
            write_file(path + ".log", "some text");
            fs::create_symlink("/etc/passwd", path + ".link");
            fs::create_directories(path + ".folder/x");
            write_file(beside / ".request.evil", payout);
            write_file(beside / ".tmp.1000", "");
        }
        const auto other = dir.open();
        const std::vector<job> got = dir.fetch(*other, 10);
        REQUIRE(got.size() == 1);
        CHECK(got[0].id == "a");
        CHECK(got[0].attempt == 2);
        for (int i = 0; i < 3; ++i) CHECK(dir.fetch(*other, 10).empty());
        CHECK(dir.names("request").empty());
        CHECK(dir.names("failed") == names{"a.folder", "a.link", "a.log", "a.out"});
        CHECK(dir.event_count(spool_event_kind::refused) == 4);
        CHECK(dir.event_count(spool_event_kind::recovered) == 1);
        CHECK(dir.event_count(spool_event_kind::owner_unknown) == 1);  // of the folder, which is kept
    }
}

#ifdef __linux__
// What the kernel is made to say here of the file system that the tests are on; 0: the truth.
static std::uint32_t pretended_type = 0;

// noexcept where the C library says so: glibc does, musl does not.
extern "C" int fstatfs(int fd, struct statfs* out) noexcept(noexcept(::fstatfs(fd, out))) {
#ifdef SYS_fstatfs64  // a 32-bit processor
    const auto answer = static_cast<int>(::syscall(SYS_fstatfs64, fd, sizeof *out, out));
#else
    const auto answer = static_cast<int>(::syscall(SYS_fstatfs, fd, out));
#endif
    if (answer == 0 && pretended_type != 0) out->f_type = static_cast<decltype(out->f_type)>(pretended_type);
    return answer;
}

TEST_CASE("spool: a worker of another boot with a free lock counts as dead only on a local file system") {
    // GPFS, BeeGFS, OrangeFS, vboxsf, NFS, FUSE; ext4, XFS, btrfs, tmpfs, overlayfs, ZFS.
    const std::uint32_t types[] = {0x47504653, 0x19830326, 0x20030528, 0x786f4256, 0x6969,     0x65735546,
                                   0xef53,     0x58465342, 0x9123683e, 0x01021994, 0x794c7630, 0x2fc12fc1};
    for (const std::uint32_t& type : types) {
        const bool local = &type - types >= 6;
        CAPTURE(type);
        spool_dir dir;
        const fs::path dead = dir.leave_dead_worker({{"a", noop}, {".claim.a", ""}});
        write_file(dead / ".owner", R"({"pid":4711,"boot_id":"another-node","host":"node-b"})");
        const auto transport = dir.open();
        pretended_type = type;
        const std::vector<job> got = dir.fetch(*transport);
        const std::vector<job> again = dir.fetch(*transport);
        pretended_type = 0;
        CHECK(got.size() == (local ? 1 : 0));
        CHECK(again.empty());
        CHECK(fs::exists(dead / "a") != local);
        CHECK(dir.event_count(spool_event_kind::owner_unknown) == (local ? 0 : 1));
    }
}
#endif

TEST_CASE("spool: a process forked by a dead worker's handler keeps none of the worker's claims") {
    spool_dir dir;
    { const auto makes_it = dir.open(); }
    dir.put("a");
    test::pipe_ends held;         // the forked one lives until this is closed
    const test::pipe_ends begun;  // it says here that it is through with fork(), which lets go of the lock
    const pid_t worker = test::forked([&] {
        const auto opened = open_spool(dir.options);
        const auto got = (*opened)->fetch(dir.asking(), deadline_after(10s));
        const pid_t forked = got && got->size() == 1 ? ::fork() : -1;
        char byte = 0;
        if (forked == 0) {
            held.close_writer();
            static_cast<void>(!::write(begun.writer(), &byte, 1));
            static_cast<void>(!::read(held.reader(), &byte, 1));
        }
        return forked == 0 || (forked > 0 && ::read(begun.reader(), &byte, 1) == 1) ? 0 : 1;
    });
    CHECK(test::status_of(worker) == 0);
    const auto other = dir.open();
    CHECK(dir.fetch_one(*other).attempt == 2);
}

TEST_CASE("spool: a folder of an unknown owner stays and is logged once; an old empty folder is removed") {
    opened_dir dir;
    const fs::path processing = dir.path / "processing";
    for (const char* folder : {"somebody", "young", "old"}) fs::create_directory(processing / folder);
    write_file(processing / "somebody" / "a", noop);  // and no lock file
    fs::create_symlink("/tmp", processing / "link");
    write_file(processing / "file", "not a folder");
    make_old(processing / "old");
    for (int i = 0; i < 3; ++i) CHECK(dir.fetch().empty());
    CHECK(dir.event_count(spool_event_kind::owner_unknown) == 3);
    CHECK(dir.event_count(spool_event_kind::recovered) == 0);
    CHECK(fs::exists(processing / "somebody" / "a"));
    CHECK(fs::exists(processing / "young"));
    CHECK(!fs::exists(processing / "old"));
}

TEST_CASE("spool: the .owner record contains pid, start time, boot id, PID namespace and host") {
    opened_dir dir;
    const std::string record = dir.read("processing/" + dir.names("processing").front() + "/.owner");
    CHECK(member(record, "pid") == std::to_string(::getpid()));
    for (const char* key : {"start_time", "boot_id", "pid_namespace", "host"}) CHECK(!member(record, key).empty());
#if OJS_SHUTDOWN_USE_PROC
    CHECK(holds(member(record, "boot_id"), read_file("/proc/sys/kernel/random/boot_id").substr(0, 36)));
#endif
}

namespace {
// A file system of 64 KiB, if we may mount one.
class small_disk {
  public:
    // `is_bind`: the same file system at the same place, by a mount of its own.
    explicit small_disk(const fs::path& at = {}, bool is_bind = false) : path(at.empty() ? own_.path() : at) {
        const std::string from = is_bind ? path.string() : "spool";
        mounted_ = ::mount(from.c_str(), path.c_str(), is_bind ? nullptr : "tmpfs", is_bind ? MS_BIND : 0,
                           is_bind ? nullptr : "size=64k,mode=0700") == 0;
    }
    ~small_disk() {
        if (mounted_) ::umount2(path.c_str(), MNT_DETACH);
    }
    bool is_mounted() const {
        if (!mounted_) MESSAGE("skipped: no file system can be mounted here");
        return mounted_;
    }
    bool set_read_only(bool on) const {
        const unsigned long flags = MS_REMOUNT | (on ? static_cast<unsigned long>(MS_RDONLY) : 0);
        return ::mount(nullptr, path.c_str(), nullptr, flags, nullptr) == 0;
    }
    // To the last byte.
    void fill() const { std::ofstream(path / "filler") << std::string(1 << 20, 'x'); }
    void make_room() const { fs::remove(path / "filler"); }

  private:
    temporary_folder own_;
    bool mounted_ = false;

  public:
    const fs::path path;
};
}  // namespace

TEST_CASE("spool: a full disk -> jobs are claimed and settled, and an ACK is accepted without its result") {
    const small_disk disk;
    if (!disk.is_mounted()) return;
    opened_dir dir(disk.path / "spool");
    for (const char* name : {"a", "b", "c"}) dir.put(name);
    REQUIRE(dir.fetch(3).size() == 3);
    disk.fill();
    CHECK(!spool_enqueue(dir.path.string(), {"noop", "[]", "default", 0, ""}));
    CHECK(dir.listing().empty());
    const auto answer =
        dir.transport->heartbeat({{&dir.worker, nullptr}, "running", {"a", "b", "c"}, {}}, deadline_after(10s));
    CHECK(answer->jobs_extended.size() == 3);  // all still ours
    CHECK(ack(dir, "b") == settle_result::accepted);
    CHECK(requeue(dir, "c") == settle_result::accepted);
    CHECK(dir.fetch_one().id == "c");
    CHECK(dir.event_count(spool_event_kind::result_dropped) == 0);
    CHECK(ack(dir, "c", "\"result\"") == settle_result::accepted);
    CHECK(dir.event_count(spool_event_kind::result_dropped) == 1);
    disk.make_room();
    CHECK(ack(dir, "c", "\"result\"") == settle_result::gone);
    CHECK(dir.listing() == "done/b done/c");
    CHECK(member(dir.read("done/c"), "result").empty());
}

TEST_CASE("spool: a folder on another file system or a bind mount is refused at start-up") {
    for (const bool is_bind : {false, true}) {
        for (const std::string folder : {"request", "processing", "done", "failed"}) {
            CAPTURE(is_bind);
            CAPTURE(folder);
            spool_dir dir;
            { const auto makes_it = dir.open(); }
            const fs::path where = dir.path / folder;
            write_file(dir.path / "request/.rename-probe", "");  // of a process that was killed
            const small_disk disk(where, is_bind);
            if (!disk.is_mounted()) return;
            const auto opened = open_spool(dir.options);
            CHECK(test::code_of(opened) == errc::invalid_argument);
            const std::string text = opened ? "" : opened.error().text;
            CHECK(holds(text, "spool/processing and "));
            CHECK(holds(text, "spool/" + (folder == "processing" ? "request" : folder) + ": "));
            CHECK(dir.owners() == 0);
            CHECK(dir.listing().empty());
        }
    }
}

TEST_CASE("spool: a full or read-only disk, no descriptors or a moved directory -> the error says so; no job is lost") {
    const struct {
        int errnum;
        bool fails, acks;  // which of the two reports works nevertheless
    } rows[] = {{ENOSPC, false, true}, {EROFS, false, false}, {EMFILE, false, true}, {ENOENT, true, true}};
    for (const auto& each : rows) {
        const int errnum = each.errnum;
        CAPTURE(errnum);
        const small_disk disk;
        if ((errnum == EROFS || errnum == ENOSPC) && !disk.is_mounted()) continue;
        opened_dir dir(disk.path / "spool", errnum == ENOSPC);  // accept_any_file: to claim one needs room
        const fs::path away = disk.path / "away";
        for (const char* name : {"a", "b"}) dir.claim(name);
        if (errnum != ENOENT) dir.put("c");
        result<std::vector<job>> fetched = std::vector<job>();
        result<settle_result> failed = settle_result::accepted;
        result<settle_result> acked = settle_result::gone;
        {
            std::optional<test::no_descriptors> none;
            if (errnum == ENOSPC) disk.fill();
            if (errnum == EROFS) REQUIRE(disk.set_read_only(true));
            if (errnum == ENOENT) fs::rename(dir.path, away);
            if (errnum == EMFILE) none.emplace();
            for (int i = 0; i < 2; ++i) fetched = dir.transport->fetch(dir.asking(), deadline_after(10s));
            failed = dir.transport->fail({{{}, "a"}, boom(), false, ""}, deadline_after(10s));
            acked = dir.transport->ack({{{}, "b"}, ""}, deadline_after(10s));
            if (errnum == EROFS) {
                const result<transport_ref> opened = open_spool(dir.options);
                REQUIRE(!opened);
                CHECK(holds(opened.error().text, std::strerror(errnum)));
            }
        }
        REQUIRE(test::code_of(fetched) == errc::unavailable);
        CHECK(holds(fetched.error().text, std::strerror(errnum)));
        CHECK(failed.has_value() == each.fails);
        if (!failed) CHECK(failed.error().sys_errno == errnum);
        CHECK(acked.has_value() == each.acks);
        CHECK(fs::exists(dir.path) == (errnum != ENOENT));  // not mounted: nothing replaces it
        if (errnum == ENOSPC) disk.make_room();
        if (errnum == EROFS) REQUIRE(disk.set_read_only(false));
        if (errnum == ENOENT) {
            fs::rename(away, dir.path);
            dir.put("c");
        }
        CHECK(dir.fetch_one().id == (each.fails ? "a" : "c"));
        if (!each.acks) CHECK(ack(dir, "b") == settle_result::accepted);
        if (!each.fails) CHECK(fail(dir, "a") == settle_result::accepted);
        CHECK(dir.names("done") == names{"b"});
        CHECK(dir.names("request") == names{each.fails ? "c" : "a"});
    }
}

TEST_CASE("spool: a removed folder is created again by the next FETCH, and the job in flight is not lost") {
    for (const std::string folder : {"done", "failed", "request"}) {
        CAPTURE(folder);
        opened_dir dir;
        dir.claim("a");
        fs::remove_all(dir.path / folder);
        const auto settle = [&]() -> result<settle_result> {
            if (folder == "done") return dir.transport->ack({{{}, "a"}, ""}, deadline_after(1s));
            return dir.transport->fail({{{}, "a"}, boom(false), folder == "request", ""}, deadline_after(1s));
        };
        CHECK(test::code_of(settle()) == errc::unavailable);
        CHECK(dir.fetch().empty());
        CHECK(accept(settle()) == settle_result::accepted);
        CHECK(dir.names(folder) == names{"a"});
    }
}

TEST_CASE("spool: a transport's folder is removed -> it claims into a new folder, and an old job is gone") {
    opened_dir dir;
    for (const char* name : {"a", "b"}) dir.put(name);
    dir.fetch_one();
    fs::remove_all(dir.path / "processing");
    CHECK(!dir.transport->fetch(dir.asking(), deadline_after(1s)));  // it wanted to claim b into it
    CHECK(dir.fetch_one().id == "b");
    CHECK(ack(dir, "a") == settle_result::gone);
    CHECK(ack(dir, "b") == settle_result::accepted);
}

TEST_CASE("spool: an unusable directory gives an error with the cause, and no directory is created") {
    temporary_folder at;
    const std::string base = at.path().string();
    write_file(base + "/file", "");
    for (const char* made : {"/odd", "/linked"}) make_folder(base + made);
    write_file(base + "/odd/done", "");
    fs::create_directory_symlink("/tmp", base + "/linked/processing");
    std::vector<std::pair<std::string, std::string>> rows = {{"", "name is empty"},
                                                             {base + "/file", "Not a directory"},
                                                             {base + "/none/spool", "No such file"},
                                                             {base + "/odd", "not a directory"},
                                                             {base + "/linked", "not a directory"},
                                                             {std::string("a\0b", 3), "NUL"},
                                                             {std::string(5000, 'x'), "name too long"}};
    if (::geteuid() == 0) {
        for (const char* made : {"/foreign", "/foreign/failed", "/foreign-root", "/goal"}) make_folder(base + made);
        fs::create_directory_symlink(base + "/goal", base + "/foreign-link");
        for (const char* given_away : {"/foreign/failed", "/foreign-root", "/foreign-link"})
            REQUIRE(::lchown((base + given_away).c_str(), 12345, 12345) == 0);
        for (const char* folder : {"/foreign", "/foreign-root"})
            rows.emplace_back(base + folder, "belongs to user 12345");
        rows.emplace_back(base + "/foreign-link/", "a symbolic link of user 12345");
    }
    for (const auto& [directory, text] : rows) {
        spool_options options;
        options.directory = directory;
        const auto opened = open_spool(options);
        REQUIRE(!opened);
        CHECK_MESSAGE(holds(opened.error().text, text), opened.error().text);
        CHECK((opened.error().code == errc::unavailable) == (text == "No such file"));  // it may be mounted later
        const auto put = spool_enqueue(directory, {"noop", "[]", "default", 0, ""});
        REQUIRE(!put);
        CHECK_MESSAGE(holds(put.error().text, text), put.error().text);
    }
    CHECK(!fs::exists(at.path() / "none"));
}

TEST_CASE("spool: a folder that others may write to is refused; allow_group_writable accepts the worker's group") {
    for (const char* folder : {".", "request", "processing", "done", "failed"}) {
        CAPTURE(folder);
        spool_dir dir;
        { const auto makes_it = dir.open(); }
        for (const mode_t mode : {0770, 0707, 01777}) {
            CAPTURE(mode);
            REQUIRE(::chmod((dir.path / folder).c_str(), mode) == 0);
            const auto opened = open_spool(dir.options);
            REQUIRE(!opened);
            CHECK_MESSAGE(holds(opened.error().text, "may write to it"), opened.error().text);
            CHECK(!spool_enqueue(dir.path.string(), {"noop", "[]", "default", 0, ""}));
        }
        REQUIRE(::chmod((dir.path / folder).c_str(), 0755) == 0);
        CHECK(open_spool(dir.options));
        if (::getuid() != 0) continue;
        REQUIRE(::chmod((dir.path / folder).c_str(), 02775) == 0);  // what kubelet does
        for (const bool is_own : {false, true}) {
            REQUIRE(::chown((dir.path / folder).c_str(), 0, is_own ? 2000 : 2001) == 0);
            const as_user member(0, {}, {2000, 0});
            for (const bool allowed : {false, true}) {
                dir.options.allow_group_writable = allowed;
                const auto opened = open_spool(dir.options);
                CHECK(opened.has_value() == (is_own && allowed));
                if (opened) continue;
                for (const char* part : {"OJS_SPOOL_GROUP_WRITE=on", "fsGroup", "chmod go-w"})
                    CHECK(holds(opened.error().text, part));
            }
        }
    }
}

TEST_CASE("spool: a relative directory still works after the program changes its working directory") {
    spool_dir dir;
    const fs::path before = fs::current_path();
    fs::current_path(dir.path.parent_path());
    dir.options.directory = "spool";
    const auto transport = dir.open();
    fs::current_path(before);
    const job claimed = dir.claim(*transport, "a");
    CHECK(fs::exists(spool_path(claimed)));
    CHECK(ack(*transport, "a") == settle_result::accepted);
}
