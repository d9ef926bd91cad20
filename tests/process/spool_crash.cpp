// A process is killed after each single system call that changes something on the disk while it claims and settles a job,
// and another one recovers: at every such moment the job is in one folder, whole, and settled or not. Other calls are not
// counted: how often the allocator asks for memory differs at every fork.
#ifdef __linux__
#include <sys/ptrace.h>
#include <sys/syscall.h>
#endif

#include "harness.hpp"

#ifdef __linux__

namespace fs = std::filesystem;

namespace {
const std::string envelope = "{\"type\":\"noop\",\"args\":[12345678901234567890],\"x\":{\"kept\":1.10}}\n";

struct ending {
    const char* name;
    const char* folder;  // where the job is then
    bool result = false;
    bool requeue = false;
    bool checkpoint = false;
};
constexpr ending endings[] = {{"ack", "done"},
                              {"ack with result", "done", true},
                              {"retry", "request"},
                              {"give up", "failed"},
                              {"hand back", "request", false, true},
                              {"hand back with checkpoint", "request", false, true, true}};

struct scenario {
    ending end;
    bool accept_any_file;
    std::string directory;
};

ojs::spool_options options_of(const scenario& what) {
    ojs::spool_options out;
    out.directory = what.directory;
    out.accept_any_file = what.accept_any_file;
    out.retry_delays = {milliseconds(0), milliseconds(0)};
    return out;
}

ojs::time_point soon() { return ojs::deadline_after(guard); }

ojs::result<ojs::settle_result> settle(ojs::transport& transport, const ending& end) {
    if (end.folder == std::string("done")) return transport.ack({{{}, "job"}, end.result ? "{\"n\":1}" : ""}, soon());
    const ojs::job_error why = {"handler_error", "boom", end.folder != std::string("failed"), "{}"};
    return transport.fail({{{}, "job"}, why, end.requeue, end.checkpoint ? "{\"at\":1}" : ""}, soon());
}

ojs::fetch_request asking(const ojs::worker_identity& worker) {
    ojs::fetch_request out;
    out.worker = &worker;
    return out;
}

// What the process does that will be killed. Stops once, before the first call that counts.
[[noreturn]] void live(const scenario& what) {
    ojs::worker_identity worker;
    worker.queues = {"default"};
    const auto opened = ojs::open_spool(options_of(what));
    if (!opened) ::_exit(3);
    ojs::transport& transport = **opened;
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);
    const auto got = transport.fetch(asking(worker), soon());
    if (!got || got->size() != 1) ::_exit(4);
    const auto done = settle(transport, what.end);
    ::_exit(done && *done == ojs::settle_result::accepted ? 0 : 6);
}

enum class fate { killed, done, not_possible };

// The number of the system call at whose begin a traced process stopped; -1 at the end of one.
long call_at(pid_t child) {
    __ptrace_syscall_info info{};
    void* const size = reinterpret_cast<void*>(sizeof info);
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, child, size, &info) > 0);
    REQUIRE((info.op == PTRACE_SYSCALL_INFO_ENTRY || info.op == PTRACE_SYSCALL_INFO_EXIT));
    return info.op == PTRACE_SYSCALL_INFO_ENTRY ? static_cast<long>(info.entry.nr) : -1;
}

// Whether a call can leave something on the disk that was not there before.
bool changes_files(long call) {
    static constexpr long changing[] = {
#ifdef SYS_open
        SYS_open,     SYS_rename,    SYS_link,     SYS_unlink,    SYS_mkdir,    SYS_rmdir,
#endif
#ifdef SYS_renameat
        SYS_renameat,
#endif
        SYS_openat,   SYS_renameat2, SYS_linkat,   SYS_symlinkat, SYS_unlinkat, SYS_mkdirat,
        SYS_mknodat,  SYS_write,     SYS_pwrite64, SYS_ftruncate};
    return std::find(std::begin(changing), std::end(changing), call) != std::end(changing);
}

// Lets it make so many calls that change files, and no more; `made` gets their numbers.
fate live_for(const scenario& what, int calls, std::vector<long>& made) {
    const pid_t child = ::fork();
    if (child == 0) live(what);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 2 ? fate::not_possible : fate::done;
    // Stops at a call are distinguished from those for a signal.
    const auto options = reinterpret_cast<void*>(std::uintptr_t{PTRACE_O_TRACESYSGOOD});
    __ptrace_syscall_info asked{};
    void* const size = reinterpret_cast<void*>(sizeof asked);
    if (::ptrace(PTRACE_SETOPTIONS, child, nullptr, options) != 0 ||
        ::ptrace(PTRACE_GET_SYSCALL_INFO, child, size, &asked) <= 0) {
        ::kill(child, SIGKILL);
        REQUIRE(::waitpid(child, &status, 0) == child);
        return fate::not_possible;
    }
    for (bool changing = false; changing || static_cast<int>(made.size()) < calls;) {
        REQUIRE(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
        REQUIRE(::waitpid(child, &status, 0) == child);
        if (WIFEXITED(status)) {
            CHECK(WEXITSTATUS(status) == 0);
            return fate::done;
        }
        const long call = call_at(child);
        changing = changes_files(call);
        if (changing) made.push_back(call);
    }
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, &status, 0) == child);
    return fate::killed;
}

std::vector<fs::path> visible_files(const std::string& directory) {
    std::vector<fs::path> out;
    for (const char* folder : {"request", "done", "failed"}) {
        for (const auto& each : fs::directory_iterator(fs::path(directory) / folder)) {
            if (each.path().filename().string().front() != '.') out.push_back(each.path());
        }
    }
    return out;
}

// Another process's view of it: what is left is recovered, and nothing is claimed.
void recover(const scenario& what) {
    ojs::worker_identity nobody;
    const auto opened = ojs::open_spool(options_of(what));
    REQUIRE(opened);
    ojs::transport& transport = **opened;
    int asked = 0;
    ojs::fetch_request request = asking(nobody);
    request.should_send = [&] { return ++asked == 1; };
    static_cast<void>(transport.fetch(request, soon()));
}

// Checks what must hold at every moment; true if the job is settled as it was meant to be.
bool check_after(const scenario& what) {
    const std::vector<fs::path> files = visible_files(what.directory);
    REQUIRE(files.size() == 1);
    const std::string folder = files.front().parent_path().filename();
    CHECK(files.front().filename() == "job");
    const std::string text = read_file(files.front());
    if (what.accept_any_file) CHECK(text == envelope);
    const json parsed = json::parse(text);
    CHECK(text.find("[12345678901234567890]") != std::string::npos);
    CHECK(text.find("1.10") != std::string::npos);
    if (folder != "request") CHECK(folder == what.end.folder);
    if (folder == "done") {
        if (what.end.result && !what.accept_any_file) CHECK(parsed["result"]["n"].number == 1);
        return true;
    }
    if (folder == "failed") {
        const json about =
            what.accept_any_file ? json::parse(read_file(files.front().parent_path() / ".about.job")) : parsed;
        CHECK(about["error"]["message"].is("boom"));
        return true;
    }
    // It can be claimed, once, with its runs counted: at most the one it had.
    ojs::worker_identity worker;
    worker.queues = {"default"};
    const auto opened = ojs::open_spool(options_of(what));
    REQUIRE(opened);
    ojs::transport& transport = **opened;
    const auto got = transport.fetch(asking(worker), soon());
    REQUIRE(got);
    REQUIRE(got->size() == 1);
    const std::int64_t attempt = got->front().attempt;
    CHECK((attempt == 1 || attempt == 2));
    if (what.end.checkpoint)
        return attempt == 1 && got->front().meta_json.find("\"checkpoint\":{\"at\":1}") != std::string::npos;
    if (what.end.requeue || what.end.folder != folder) return false;  // before and after look the same
    return attempt == 2 && (what.accept_any_file || parsed["error"]["message"].is("boom"));
}

scenario lay_out(const std::string& directory, const ending& end, bool accept_any_file) {
    for (const char* folder : {"", "request", "processing", "done", "failed"})
        REQUIRE(::mkdir((fs::path(directory) / folder).c_str(), 0700) == 0);
    write_file(fs::path(directory) / "request" / "job", envelope);
    return {end, accept_any_file, directory};
}
}  // namespace

TEST_CASE("spool: a process killed after any file-changing system call leaves its job whole in one folder") {
    // In memory where there is room: the kernel keeps what a killed process has done either way, and disks are slow.
    const temporary_folder base{temporary_folder::kind::in_memory};
    int moments = 0;
    for (const bool accept_any_file : {false, true}) {
        for (const ending& end : endings) {
            CAPTURE(accept_any_file);
            CAPTURE(end.name);
            bool was_settled = false;
            std::vector<long> before;
            for (int calls = 0;; ++calls) {
                CAPTURE(calls);
                REQUIRE(calls < 1000);
                const scenario what = lay_out(base.file(std::to_string(moments)), end, accept_any_file);
                std::vector<long> made;
                const fate how = live_for(what, calls, made);
                if (how == fate::not_possible) {
                    MESSAGE("skipped: no process may be traced here");
                    return;
                }
                recover(what);
                const bool settled = check_after(what);
                CHECK((settled || !was_settled));  // what is settled stays so
                REQUIRE(made.size() >= before.size());
                CHECK(std::equal(before.begin(), before.end(), made.begin()));  // always the same calls
                was_settled = settled;
                before = made;
                ++moments;
                fs::remove_all(what.directory);
                if (how == fate::done) break;
            }
            CHECK((was_settled || (end.requeue && !end.checkpoint)));
        }
    }
    MESSAGE(moments << " moments");
}

#endif
