#include "harness.hpp"

#include <dirent.h>
#include <spawn.h>

#include <picojson.h>
#include <cmath>

extern char** environ;

namespace test {
namespace {
json convert(const picojson::value& from) {
    json out;
    if (from.is<bool>()) {
        out.what = json::kind::boolean;
        out.flag = from.get<bool>();
    } else if (from.is<double>()) {
        out.what = json::kind::number;
        const double value = from.get<double>();
        out.number = std::fabs(value) < 9e18 ? static_cast<std::int64_t>(value) : 0;
        out.text = from.to_str();
    } else if (from.is<std::string>()) {
        out.what = json::kind::string;
        out.text = from.get<std::string>();
    } else if (from.is<picojson::array>()) {
        out.what = json::kind::array;
        for (const picojson::value& item : from.get<picojson::array>()) out.items.push_back(convert(item));
    } else if (from.is<picojson::object>()) {
        out.what = json::kind::object;
        for (const auto& [name, value] : from.get<picojson::object>()) out.members.emplace_back(name, convert(value));
    }
    return out;
}

// ---- files ----

// What was added to a file since `offset`.
std::string read_from(const std::string& path, std::size_t offset) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    std::ostringstream out;
    out << file.rdbuf();
    return out.str();
}

// ---- starting programs ----

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (std::string& each : strings) out.push_back(&each[0]);
    out.push_back(nullptr);
    return out;
}

// Ours without anything of OJS_* and TEST_*, and with `extra`. For ThreadSanitizer, threads left behind in
// _exit() are meant to be, and not to sleep for a second at every exit.
std::vector<std::string> child_environment(environment extra) {
    extra.emplace("OJS_LOG_FORMAT", "text");
    std::string& tsan = extra["TSAN_OPTIONS"];
    if (const char* set = ::getenv("TSAN_OPTIONS")) tsan = set;
    tsan += ":report_thread_leaks=0:atexit_sleep_ms=0";
    std::vector<std::string> out;
    for (char** each = environ; *each != nullptr; ++each) {
        const std::string name(*each, std::strcspn(*each, "="));
        const bool ours = name.compare(0, 4, "OJS_") == 0 || name.compare(0, 5, "TEST_") == 0;
        if (!ours && extra.count(name) == 0) out.emplace_back(*each);
    }
    for (const auto& [name, value] : extra) out.push_back(name + "=" + value);
    return out;
}

pid_t spawn(std::vector<std::string> command, const environment& extra, const std::string& output) {
    std::vector<std::string> variables = child_environment(extra);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    // A shell may have started us with SIGINT ignored or signals blocked; the programs start clean.
    sigset_t defaults;
    sigset_t none;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int number : {SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGTTIN, SIGPIPE}) sigaddset(&defaults, number);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    pid_t pid = 0;
    const int failed = ::posix_spawnp(&pid, command.front().c_str(), &files, &attributes, pointers(command).data(),
                                      pointers(variables).data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    REQUIRE_MESSAGE(failed == 0, command.front() << ": " << std::strerror(failed));
    return pid;
}
}  // namespace

int count_marked(const std::string& mark) {
    int out = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const std::string all = read_file(entry.path() / "environ");
        out += all.find("OJS_TEST_MARK=" + mark) != std::string::npos ? 1 : 0;
    }
    return out;
}

const json& json::operator[](const char* key) const {
    static const json absent;
    for (const auto& [name, value] : members) {
        if (name == key) return value;
    }
    return absent;
}

bool json::holds(const std::string& wanted) const {
    for (const json& item : items) {
        if (item.text == wanted) return true;
    }
    return false;
}

json json::parse(const std::string& text) {
    picojson::value out;
    std::string error;
    const auto end = picojson::parse(out, text.begin(), text.end(), &error);
    const bool whole = error.empty() && std::all_of(end, text.end(), [](char c) { return c <= ' '; });
    return whole ? convert(out) : json();
}

std::vector<std::string> pid_namespace() {
    const std::vector<std::string> out = {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"};
    std::vector<std::string> trial = out;
    trial.emplace_back("true");
    if (process(trial, {}).wait() == 0) return out;
    MESSAGE("skipped: no PID namespaces here");
    return {};
}

std::string init_of(const process& outside) {
    const std::string self = std::to_string(outside.pid());
    std::string out;
    std::ifstream("/proc/" + self + "/task/" + self + "/children") >> out;
    return out;
}

std::string program(const std::string& name) {
    if (const char* folder = ::getenv("OJS_TEST_BIN")) return std::string(folder) + "/" + name;
    char self[4096];
    const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
    const std::string path(self, length > 0 ? static_cast<std::size_t>(length) : 0);
    return path.substr(0, path.rfind('/') + 1) + name;
}

std::int64_t monotonic_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
}

std::uint64_t number_from(const char* variable, std::uint64_t fallback) {
    const char* set = ::getenv(variable);
    return set == nullptr ? fallback : std::strtoull(set, nullptr, 10);
}

std::string scratch_file(const std::string& name) {
    static const temporary_folder folder;
    static int number = 0;
    return folder.file(std::to_string(++number) + "-" + name);
}

environment settings_from(const std::string& text, environment more) {
    for (const std::string& each : words(text))
        more.emplace(each.substr(0, each.find('=')), each.substr(each.find('=') + 1));
    return more;
}

// ---- process ----

// test_worker, given a command, makes it die with us.
process::process(const std::vector<std::string>& command, const environment& extra) : path_(scratch_file("output")) {
    std::vector<std::string> whole = command;
    if (command.front() != program("test_worker")) whole.insert(whole.begin(), program("test_worker"));
    pid_ = spawn(std::move(whole), extra, path_);
}

process::~process() {
    if (pid_ == 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

void process::swap(process& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(path_, other.path_);
    std::swap(output_, other.output_);
}

void process::signal(int number) const { ::kill(pid_, number); }

void process::freeze() const {
    signal(SIGSTOP);
    siginfo_t about{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid_), &about, WSTOPPED | WNOWAIT) == 0);
}

int process::wait(milliseconds limit) const {
    int status = running;
    eventually(
        [&] {
            siginfo_t info{};
            if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return true;
            if (info.si_pid == 0) return false;
            status = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
            return true;
        },
        limit);
    return status;
}

const std::string& process::output() {
    output_ += read_from(path_, output_.size());
    return output_;
}

bool process::prints(const std::string& text, milliseconds limit) {
    return eventually([&] { return output().find(text) != std::string::npos; }, limit);
}

int process::count(const std::string& text) {
    int found = 0;
    const std::string& all = output();
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
    return found;
}

// ---- backend ----

backend::backend(std::vector<std::string> flags, std::vector<std::string> launcher) : ledger_(scratch_file("ledger")) {
    // Workers report themselves what took too long, however late a busy machine lets them.
    launcher.insert(launcher.end(),
                    {program("dev_backend"), "--port", "0", "--ledger", ledger_, "--timeout-grace", "10m"});
    launcher.insert(launcher.end(), flags.begin(), flags.end());
    process_ = process(launcher, {});
    const std::string greeting = "listening on ";
    REQUIRE_MESSAGE(eventually([&] {
                        const std::size_t at = process_.output().find(greeting);
                        return at != std::string::npos && process_.output().find('\n', at) != std::string::npos;
                    }),
                    "dev_backend says: " << process_.output());
    const std::string& said = process_.output();
    const std::size_t begin = said.find(greeting) + greeting.size();
    url_ = "http://" + said.substr(begin, said.find('\n', begin) - begin);
}

const std::vector<json>& backend::events() {
    const std::string fresh = read_from(ledger_, read_);
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = fresh.find('\n', begin)) != std::string::npos; begin = end + 1) {
        events_.push_back(json::parse(fresh.substr(begin, end - begin)));
    }
    read_ += begin;
    return events_;
}

ojs::result<ojs::http_response> ask(const std::string& url, const std::string& method, const std::string& path,
                                    const std::string& body, const ojs::http_headers& headers) {
    ojs::result<ojs::http_client> client = ojs::http_client::create(url);
    if (!client) return client.error();
    return client->send({method, path, headers, body}, {clock::now() + guard});
}

std::string backend::call(const char* method, const std::string& path, const std::string& body) {
    const auto answer = ask(url_, method, path, body);
    REQUIRE_MESSAGE(answer, path << ": " << answer.error().text);
    REQUIRE_MESSAGE(answer->status < 300, path << ": " << answer->status << " " << answer->body);
    return answer->body;
}

json backend::post(const std::string& path, const std::string& body) { return json::parse(call("POST", path, body)); }
std::string backend::get(const std::string& path) { return call("GET", path, ""); }
json backend::summary() { return json::parse(get("/dev/summary")); }

json backend::job(const std::string& id) {
    const json answer = json::parse(get("/ojs/v1/jobs/" + id));
    return answer.has("job") ? answer["job"] : answer;
}

std::vector<std::string> backend::push(const std::string& type, const std::string& args, int count,
                                       const std::string& more) {
    std::string body = "{\"jobs\":[";
    for (int i = 0; i < count; ++i) {
        body += std::string(i == 0 ? "" : ",") + "{\"type\":\"" + type + "\",\"args\":" + args + more + "}";
    }
    const json answer = post("/ojs/v1/jobs/batch", body + "]}");
    std::vector<std::string> ids;
    for (const json& each : answer["jobs"].items) ids.push_back(each["id"].text);
    REQUIRE(ids.size() == static_cast<std::size_t>(count));
    return ids;
}

void gate::open() const { REQUIRE(std::ofstream(path_).good()); }

// ---- workers ----

process start_worker(const std::string& url, const std::string& id, const environment& extra) {
    environment settings = extra;
    settings.insert({{"OJS_URL", url}, {"OJS_WORKER_ID", id}});
    return process({program("test_worker")},
                   settings_from("OJS_HEARTBEAT_INTERVAL=100ms OJS_POLL_INTERVAL=20ms OJS_SIGNAL_DEBOUNCE=50ms",
                                 std::move(settings)));
}
}  // namespace test
