#include "fake_fleet.hpp"
#include "processes.hpp"

// Elsewhere reused pids cannot be detected.
#if defined(__linux__) && OJS_SHUTDOWN_USE_PROC

using namespace ojs::detail;

namespace {
bool group_is_there(pid_t group) { return ::kill(-group, 0) == 0; }

// Runs until it is killed; the constructor waits for its start.
class sleeper {
  public:
    explicit sleeper(const char* script = "echo up; sleep 1000 & wait") {
        child_options how;
        how.command = {"sh", "-c", script};
        how.leave_orphans = true;
        how.output = child_stream::lines([this](std::string_view) { up_.set(); });
        result<child_process> made = child_process::start(how);
        REQUIRE(made);
        process = std::move(*made);
        REQUIRE(up_.wait());
    }
    sleeper(const sleeper&) = delete;
    sleeper& operator=(const sleeper&) = delete;
    ~sleeper() { ::kill(-process.pid(), SIGKILL); }  // before the leader is reaped, unless a test has done that
    child_exit end() {
        const result<child_exit> out = process.wait(deadline_after(test::hang_guard));
        REQUIRE(out);
        return *out;
    }
    state_entry entry() const {
        return {"kv-1", "kv \"1\"", "unix:/somewhere", process.pid(), ::getsid(0), start_ticks_of(process.pid())};
    }
    child_process process;

  private:
    test::event up_;
};

// Unlocked at the end of the scope: the thread that writes may hold a reference for longer.
class opened {
  public:
    explicit opened(const std::string& path) : file_(state_file::open(path)) { REQUIRE(file_); }
    opened(const opened&) = delete;
    opened& operator=(const opened&) = delete;
    ~opened() { (*file_)->close(); }
    state_file* operator->() const { return (*file_).get(); }

  private:
    const result<ref<state_file>> file_;
};

// The disk of a state file, which hangs or works as a test says. One at a time.
class faulty_disk {
  public:
    faulty_disk() { current = this; }
    faulty_disk(const faulty_disk&) = delete;
    faulty_disk& operator=(const faulty_disk&) = delete;
    ~faulty_disk() {
        hangs(false);
        std::unique_lock<std::mutex> held(mutex_);
        while (busy_ > 0) changed_.wait(held);
        current = nullptr;
    }

    void hangs(bool now) {
        const std::lock_guard<std::mutex> held(mutex_);
        hangs_ = now;
        changed_.notify_all();
    }
    void await_hanging() {
        std::unique_lock<std::mutex> held(mutex_);
        while (busy_ == 0) changed_.wait(held);
    }
    static int replace(const std::string& path, std::string_view text) {
        faulty_disk& disk = *current;
        disk.enter(1);
        const int failed = replace_file(path, text);
        disk.enter(-1);
        return failed;
    }

  private:
    void enter(int more) {
        std::unique_lock<std::mutex> held(mutex_);
        busy_ += more;
        changed_.notify_all();
        while (more > 0 && hangs_) changed_.wait(held);
    }

    static inline faulty_disk* current = nullptr;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool hangs_ = true;
    int busy_ = 0;
};
}  // namespace

TEST_CASE("state_file: the next launcher ends orphans and removes their folder; a second one fails with busy") {
    const test::temporary_folder folder;
    const std::string path = folder.file("state");
    sleeper left;
    sleeper gone("echo up; exec sleep 1000");  // nobody else is in its group
    const std::string own = folder.file("ojs-launcher-abcdef");
    const std::string given = folder.file("sockets");                // by the configuration
    const std::string changed = folder.file("ojs-launcher-others");  // by somebody else
    for (const std::string& each : {own, given, changed}) {
        REQUIRE(::mkdir(each.c_str(), 0700) == 0);
        test::write_file(each + "/kv-1.sock", "");
    }
    REQUIRE(::chmod(changed.c_str(), 0755) == 0);
    {
        const opened first(path);
        CHECK(first->orphans().empty());
        for (const std::string& each : {own, given, changed}) REQUIRE(first->add_folder(each));
        REQUIRE(first->write({left.entry(), gone.entry()}));
        CHECK(test::code_of(state_file::open(path)) == errc::busy);
    }
    struct stat about {};
    REQUIRE(::stat(path.c_str(), &about) == 0);
    CHECK((about.st_mode & 0777) == 0600);
    REQUIRE(gone.process.kill());
    const opened next(path);
    REQUIRE(next->orphans().size() == 1);
    const state_entry known = next->orphans()[0];
    CHECK(known.id == "kv-1");
    CHECK(known.group == "kv \"1\"");
    CHECK(known.address == "unix:/somewhere");
    CHECK(known.pid == left.process.pid());
    CHECK(next->reap_orphans(20s, 5s, lifecycle()) == 1);
    CHECK(next->orphans().empty());
    CHECK(left.end().signal == SIGTERM);
    REQUIRE(next->begin());
    CHECK_FALSE(std::filesystem::exists(own));
    for (const std::string& each : {given, changed}) CHECK(std::filesystem::exists(each + "/kv-1.sock"));
}

#ifndef __SANITIZE_THREAD__  // which runs no signal handler in a child of a process with threads
TEST_CASE("state_file: SIGTERM while a launcher ends orphans -> it waits; a second one kills them") {
    const test::temporary_folder folder;
    sleeper left("trap '' TERM; echo up; sleep 1000 & wait");
    REQUIRE(opened(folder.file("state"))->write({left.entry()}));
    const auto run = [&] {
        test::fake_fleet fleet;
        launcher_options options;
        options.groups = {test::kv_group(1, 0, 1)};
        options.state_file = folder.file("state");
        options.orphan_grace_period = 1h;
        test::event begun;
        options.log.hook = [&](const log_record& record) {
            if (record.message.find("sending SIGTERM") != std::string::npos) begun.set();
        };
        lifecycle life(0ms);
        launcher kept = fleet.launch(options, &life);
        bool waits = false;
        std::thread sender([&] {
            if (!begun.wait()) return;
            ::raise(SIGTERM);  // to this thread, which has handled it then
            waits = life.phase() == phase::draining && group_is_there(left.process.pid());
            ::raise(SIGTERM);
        });
        const int status = kept.run();
        sender.join();
        return waits && fleet.calls().empty() ? status : -1;
    };
    // In a process of its own: run() exits if its end takes longer than a second.
    CHECK(test::status_of(test::forked(run)) == exit_status::settled);
    CHECK(left.end().signal == SIGKILL);
}
#endif

TEST_CASE("state_file: a recorded pid of another start time, boot or PID namespace is not an orphan") {
    const struct {
        const char* name;
        std::uint64_t start_ticks;  // beside its own
        bool known;                 // when it was started
        const char* altered;        // member of the file
        bool ours;
    } rows[] = {{"it was started at another time", 1, true, "", false},
                {"nobody knows when it was started", 0, false, "", false},
                {"before the machine was started again", 0, true, "\"bootId\":\"", false},
                {"of another PID namespace", 0, true, "\"pidNamespace\":\"", false},
                {"its session began outside of its PID namespace, as by podman exec", 0, true, "", true}};
    const sleeper left;
    for (const auto& row : rows) {
        CAPTURE(row.name);
        state_entry entry = left.entry();
        entry.start_ticks = row.known ? entry.start_ticks + row.start_ticks : 0;
        if (row.ours) entry.session = 0;  // getsid(2) there
        const test::temporary_folder folder;
        const std::string path = folder.file("state");
        REQUIRE(opened(path)->write({entry}));
        std::string text = test::read_file(path);
        if (*row.altered != 0)
            test::write_file(path, text.insert(text.find(row.altered) + std::strlen(row.altered), "0"));
        CHECK(opened(path)->orphans().size() == (row.ours ? 1 : 0));
    }
}

TEST_CASE("state_file: a group without its leader is ended only if it belongs to the recorded session") {
    const struct {
        const char* name;
        bool ours, reaped;
    } rows[] = {{"the leader was reaped", true, true},
                {"it is of another process of that number", false, true},
                {"the leader is a zombie", true, false}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        const test::temporary_folder folder;
        const std::string path = folder.file("state");
        sleeper left("sleep 1000 & echo up; wait");
        state_entry entry = left.entry();
        if (!row.ours) ++entry.session;
        REQUIRE(opened(path)->write({entry}));
        REQUIRE(::kill(entry.pid, SIGKILL) == 0);
        pollfd ended{left.process.fd(), POLLIN, 0};
        REQUIRE(::poll(&ended, 1, 30000) == 1);
        if (row.reaped) left.end();
        REQUIRE(group_is_there(entry.pid));
        const opened next(path);
        CHECK(next->orphans().size() == (row.ours ? 1 : 0));
        CHECK(next->reap_orphans(20s, 5s, lifecycle()) == (row.ours ? 1 : 0));
        CHECK(next->orphans().empty());
        if (!row.ours) CHECK(group_is_there(entry.pid));
    }
}

TEST_CASE("state_file: orphans of an earlier launcher stay recorded until they have exited") {
    const test::temporary_folder folder;
    const std::string path = folder.file("state");
    const sleeper one, two;
    for (const sleeper* each : {&one, &two})
        REQUIRE(opened(path)->write({each->entry()}));  // by a launcher that only reports them, and ends
    const opened next(path);
    CHECK(next->orphans().size() == 2);
    CHECK(next->reap_orphans(20s, 5s, lifecycle()) == 2);
}

TEST_CASE("process_group: the state file's disk hangs -> a start waits for it, and a stop does not") {
    const test::temporary_folder folder;
    faulty_disk disk;
    group_options sleepers = test::kv_group(1, 0, 1);
    sleepers.process.child.command = {"sleep", "1000"};
    sleepers.process.has_coordinator = false;
    test::fake_fleet notes;  // of the routing
    test::fake_group kv(notes, sleepers);
    kv.with_hooks();
    const auto file = state_file::open(folder.file("state"), logger(), faulty_disk::replace);
    REQUIRE(file);
    kv.context->state = *file;
    kv.context->starter = real_process_starter({log_level::off, {}, {}});
    const test::fake_group::supervisor turning(kv);
    disk.await_hanging();
    CHECK(kv.group->info().processes[0].state == instance_state::spawning);
    disk.hangs(false);
    REQUIRE(notes.notes().wait_for(1));  // it is routable
    CHECK(test::read_file(folder.file("state")).find("kv-1") != std::string::npos);
    disk.hangs(true);
    REQUIRE(kv.group->begin_rollout(sleepers, {}));
    disk.await_hanging();
    kv.group->stop_starting();
    kv.group->drain(kv.group->members(), {"test", {}, {}});
    const time_point end = deadline_after(test::hang_guard);
    while (!kv.group->empty() && steady_clock::now() < end) std::this_thread::yield();
    CHECK(kv.group->empty());
    result<wake> stop = wake::create();
    REQUIRE(stop);
    stop->notify();
    CHECK(test::code_of((*file)->add({"kv-9", "kv", "", ::getpid(), 0, 0}, stop->fd())) == errc::cancelled);
    disk.hangs(false);
    (*file)->close();
}

TEST_CASE("state_file: the disk is full -> add() fails, so that the process is not started") {
    const test::temporary_folder folder;
    const auto full = [](const std::string&, std::string_view) { return ENOSPC; };
    const auto file = state_file::open(folder.file("state"), logger(), full);
    REQUIRE(file);
    CHECK((*file)->add({"kv-1", "kv", "", ::getpid(), 0, 0}).error().sys_errno == ENOSPC);
    (*file)->close();
}

TEST_CASE("state_file: an invalid file is refused and left unchanged, and a partial .new file is ignored") {
    const test::temporary_folder folder;
    const std::string path = folder.file("state");
    const std::string boot = test::read_file("/proc/sys/kernel/random/boot_id").substr(0, 36);
    const std::string here =
        std::filesystem::read_symlink("/proc/self/ns/pid").string() + "@" + std::to_string(start_ticks_of(1));
    const std::string head = "{\"boot_id\":\"" + boot + "\",\"pid_namespace\":\"" + here + "\",\"processes\":";
    const std::string init = R"([{"id":"a","group":"b","address":"c","session":1,"pid":1,"start_ticks":1}]})";
    for (const std::string& text : {std::string("my notes"), std::string("{}"), head + "[{}]}", head + init}) {
        INFO(text);
        test::write_file(path, text);
        CHECK(test::code_of(state_file::open(path)) == errc::invalid_argument);
        CHECK(test::read_file(path) == text);
    }
    test::write_file(path, head + "[]}");
    test::write_file(path + ".new", "{\"boot");
    CHECK(opened(path)->write({}));
    CHECK(opened(path)->orphans().empty());
}

#endif
