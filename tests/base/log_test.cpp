// Log records as lines, the filter and the hook, and writing to an end that nobody reads.
#include <picojson.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "processes.hpp"

namespace {
using detail::field;
using test::eventually;

log_record nasty_record() {
    return {log_level::warn,
            "a \"quoted\"\nmessage\\",
            {field("plain", "value"), field("count", 12), field("negative", -3LL), field("spaced", "two words"),
             field("empty", ""), field("escape", "\x1b[31m"), field("line", "one\ntwo"),
             field("nul", std::string_view("a\0b", 3)), field("utf8", "gr\xc3\xbc\xc3\x9f")}};
}

// What a terminal obeys, or what turns the direction of writing: the first and the last of each kind, and their neighbours.
const char* const controls[] = {"\xc2\x80",     "\xc2\x9b",     "\xc2\x9f",     "\xd8\x9c",
                                "\xe2\x80\x8e", "\xe2\x80\x8f", "\xe2\x80\xa8", "\xe2\x80\xaa",
                                "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa9"};
const char* const texts[] = {"\xc2\xa0",     "\xd8\x9b",     "\xd8\x9d",         "\xe2\x80\x8d",    "\xe2\x80\x90",
                             "\xe2\x80\xa7", "\xe2\x80\xaf", "\xe2\x81\xa5",     "\xe2\x81\xaa",    "\xef\xbf\xbd",
                             "\xe4\xbd\xa0", "\xe3\x81\xa6", "\xf0\x92\x80\xae", "\xf0\x9f\x98\x80"};

TEST_CASE("log: no format writes a Unicode control character unescaped in message, field or worker id") {
    CHECK(detail::json_quote("\xc2\x9b|\xe2\x80\xae|\xd8\x9c|\x1f|\x7f|\"") ==
          R"("\u009b|\u202e|\u061c|\u001f|\u007f|\"")");
    for (const log_format format : {log_format::json, log_format::logfmt, log_format::text}) {
        const auto line = [format](const std::string& what) {
            return format_log_record({log_level::warn,
                                      "m" + what + "m",
                                      {field("bare", "b" + what), field("spaced", " " + what)},
                                      "w" + what},
                                     format);
        };
        for (const std::string control : controls) {
            CAPTURE(control);
            CHECK(line(control).find(control) == std::string::npos);
        }
        for (const std::string text : texts) {
            CAPTURE(text);
            CHECK(holds(line(text), "m" + text + "m"));
            CHECK(holds(line(text), "b" + text));
        }
    }
}

bool has_raw_control_character(const std::string& line) {
    return std::any_of(line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

picojson::value as_json(const log_record& record) {
    picojson::value parsed;
    CHECK(picojson::parse(parsed, format_log_record(record, log_format::json)).empty());
    return parsed;
}

TEST_CASE("log: a line in JSON format parses as one object with every non-empty field intact") {
    CHECK_FALSE(has_raw_control_character(format_log_record(nasty_record(), log_format::json)));
    picojson::object found = as_json(nasty_record()).get<picojson::object>();
    std::string time = found.at("timestamp").to_str();
    for (char& each : time) each = std::isdigit(each) != 0 ? '0' : each;
    CHECK(time == "0000-00-00T00:00:00.000Z");
    found.erase("timestamp");
    // What another parser writes of it again.
    CHECK(picojson::value(found).serialize() ==
          R"({"attributes":{"count":12,"escape":"\u001b[31m","line":"one\ntwo","negative":-3,"nul":"a\u0000b",)"
          R"("plain":"value","spaced":"two words","utf8":"gr)"
          "\xc3\xbc\xc3\x9f"
          R"("},"category":"worker",)"
          R"("component":"worker","message":"a \"quoted\"\nmessage\\","severity":"WARN","severity_number":13})");
}

TEST_CASE("log: the JSON format places job fields under ojs, error fields under error, others under attributes") {
    log_record record{log_level::error,
                      "job failed",
                      {field("job_id", "j1"), field("job_type", "t"), field("queue", "q"), field("attempt", 2),
                       field("error_type", "handler_error"), field("error", "why"), field("elapsed_ms", 5)},
                      "worker_1"};
    CHECK(as_json(record).get("category").to_str() == "error");
    record.level = log_level::info;
    const picojson::value found = as_json(record);
    CHECK(found.get("category").to_str() == "lifecycle");
    CHECK(found.get("severity").to_str() == "INFO");
    CHECK(found.get("severity_number").to_str() == "9");
    CHECK(found.get("ojs").serialize() ==
          R"({"attempt":2,"job_id":"j1","job_type":"t","queue":"q","worker_id":"worker_1"})");
    CHECK(found.get("error").serialize() == R"({"message":"why","type":"handler_error"})");
    CHECK(found.get("attributes").serialize() == R"({"elapsed_ms":5})");
    record.component = "launcher";
    CHECK(as_json(record).get("component").to_str() == "launcher");
    record.level = log_level::debug;
    CHECK(as_json(record).get("severity_number").to_str() == "5");
    CHECK(format_log_record(record, log_format::logfmt).find(" worker_id=worker_1 ") != std::string::npos);
    CHECK(format_log_record(record, log_format::text).find("worker_1") == std::string::npos);
}

TEST_CASE("logger: write_requested() writes at every level but off, and a record may name its component") {
    std::string seen;
    log_options options;
    options.level = log_level::error;
    options.hook = [&seen](const log_record& record) {
        seen += std::string(record.component) + " " + record.message;
        for (const log_field& each : record.fields) seen += " " + each.value;
        seen += "\n";
    };
    const detail::logger logger(options, "worker", "w");
    logger.write(log_level::info, "not shown", {field("x", "y")});
    logger.write_requested("shown", {field("x", "y")});
    logger.write({log_level::error, "of another part", {}, {}, "sequence"});
    detail::logger(options, "launcher").write(log_level::error, "of this part");
    CHECK(seen == "worker shown y\nsequence of another part\nlauncher of this part\n");
    seen.clear();
    options.level = log_level::off;
    detail::logger(options, "worker").write_requested("never", {field("x", "z")});
    CHECK(seen.empty());
}

TEST_CASE("log: logfmt and text quote values where needed and escape control characters") {
    const std::string logfmt = format_log_record(nasty_record(), log_format::logfmt);
    CHECK_FALSE(has_raw_control_character(logfmt));
    CHECK(logfmt.find("time=") == 0);
    CHECK(holds(logfmt,
                " level=warn msg=\"a \\\"quoted\\\"\\u000amessage\\\\\" plain=value count=12 negative=-3 "
                "spaced=\"two words\" "));
    CHECK(holds(logfmt, "line=\"one\\u000atwo\""));

    const std::string text = format_log_record(nasty_record(), log_format::text);
    CHECK_FALSE(has_raw_control_character(text));
    CHECK(holds(text, "warn"));
    CHECK(holds(text, "  plain=value  count=12"));
    CHECK(holds(text, "  spaced=\"two words\""));
}

TEST_CASE("log: only lines at or above the configured level are written, and off suppresses all") {
    const std::vector<log_level> levels = {log_level::debug, log_level::info, log_level::warn, log_level::error,
                                           log_level::off};
    std::string names;
    for (const log_level min : levels) {
        names += to_string(min) + std::string(" ");
        CAPTURE(names);
        std::vector<log_level> seen, expected;
        log_options options;
        options.level = min;
        options.hook = [&seen](const log_record& record) {
            seen.push_back(record.level);
            CHECK(record.message == "said");
        };
        const detail::logger logger(options, "worker");
        for (const log_level level : levels) {
            logger.write(level, "said");
            if (level >= min && level != log_level::off) expected.push_back(level);
            CHECK(logger.enabled(level) == (level >= min && level != log_level::off));
        }
        CHECK(seen == expected);
    }
    CHECK(names == "debug info warn error off ");
}

struct pipe_ends : test::pipe_ends {
    std::string read_all_there_is() const {
        ::fcntl(reader(), F_SETFL, O_NONBLOCK);
        std::string out;
        char bytes[65536];
        for (ssize_t got = 0; (got = ::read(reader(), bytes, sizeof bytes)) > 0;)
            out.append(bytes, static_cast<std::size_t>(got));
        return out;
    }
};

TEST_CASE("log: a line longer than PIPE_BUF arrives whole, and every line ends with one newline") {
    const pipe_ends pipe;
    const std::string long_line(60000, 'y');
    detail::write_line(pipe.writer(), "first");
    detail::write_line(pipe.writer(), long_line);
    CHECK(pipe.read_all_there_is() == "first\n" + long_line + "\n");
}

TEST_CASE("log: a line to a closed pipe raises no SIGPIPE, and SIGPIPE's handler, mask and pending state stay") {
    struct sigaction before {};
    struct sigaction after {};
    struct sigaction counting {};
    static std::atomic<int> raised{0};
    raised = 0;
    counting.sa_handler = [](int) { ++raised; };
    sigaction(SIGPIPE, &counting, &before);
    pipe_ends pipe;
    pipe.close_reader();
    for (int i = 0; i < 10; ++i) detail::write_line(pipe.writer(), "nobody reads this");
    CHECK(raised == 0);
    // Someone else's SIGPIPE still arrives: before, while and after ours were swallowed.
    raise(SIGPIPE);
    CHECK(raised == 1);
    // One that was pending when the write began stays pending.
    sigset_t only_pipe, mask, pending;
    sigemptyset(&only_pipe);
    sigaddset(&only_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &only_pipe, &mask);
    CHECK(sigismember(&mask, SIGPIPE) == 0);
    raise(SIGPIPE);
    detail::write_line(pipe.writer(), "nobody reads this");
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGPIPE) == 1);
    pthread_sigmask(SIG_UNBLOCK, &only_pipe, nullptr);
    CHECK(raised == 2);
    sigaction(SIGPIPE, &before, &after);
    CHECK((after.sa_handler == counting.sa_handler));
}

// Fills a pipe but for `free_pages`, page by page as the kernel does.
void fill(int writer, int free_pages) {
    const int size = ::fcntl(writer, F_GETPIPE_SZ);
    const std::string page(4096, 'z');
    for (int i = 0; i < size / 4096 - free_pages; ++i) REQUIRE(::write(writer, page.data(), page.size()) == 4096);
}

TEST_CASE("log: a full pipe -> lines wait for 1 s in all, then are dropped, and the number dropped is logged once") {
    const pipe_ends pipe;
    fill(pipe.writer(), 0);
    CHECK(test::status_of(test::forked([&] {  // a child has a budget and a count of its own
              ::dup2(pipe.writer(), STDERR_FILENO);
              log_options options;
              options.format = log_format::logfmt;
              const detail::logger log(options, "worker", "w");
              for (int i = 0; i < 1000; ++i) log.write(log_level::info, "lost");
              static_cast<void>(pipe.read_all_there_is());
              for (const char* each : {"first", "second"}) log.write(log_level::info, each);
              return 0;
          })) == 0);
    std::string seen;
    const std::string output = pipe.read_all_there_is();
    for (std::string_view rest = output; !rest.empty();) {
        const std::string_view line = detail::next_part(rest, "\n");
        seen += std::string(line.substr(line.find(" level="))) + "\n";
    }
    CHECK(seen ==
          " level=info msg=\"first\" worker_id=w\n"
          " level=warn msg=\"log lines dropped: standard error was blocked\" lines=1000\n"
          " level=info msg=\"second\" worker_id=w\n");
}

TEST_CASE("log: a file at RLIMIT_FSIZE -> further lines are lost, and no SIGXFSZ ends the process") {
    const test::temporary_folder here;
    const pid_t child = test::forked([&] {
        const rlimit limit{4096, 4096};
        const int file = ::open(here.file("log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        ::signal(SIGXFSZ, SIG_DFL);
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 99;
        for (int i = 0; i < 100; ++i) detail::write_line(file, std::string(100, 'x'));
        return ::lseek(file, 0, SEEK_END) == 4096 ? 0 : 1;
    });
    CHECK(test::status_of(child) == 0);
}

TEST_CASE("log: a background process of a terminal with TOSTOP is not stopped when it writes a line") {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) {
        MESSAGE("skipped: no pseudo-terminal");
        return;
    }
    CHECK(test::status_of(test::forked([terminal] {
              ::setsid();
              const int own = ::open(::ptsname(terminal), O_RDWR);
              termios modes{};
              if (own < 0 || ::ioctl(own, TIOCSCTTY, 0) != 0 || ::tcgetattr(own, &modes) != 0) return 99;
              modes.c_lflag |= TOSTOP;
              ::tcsetattr(own, TCSANOW, &modes);
              const pid_t background = ::fork();
              if (background == 0) {
                  ::setpgid(0, 0);
                  detail::write_line(own, "a line");
                  ::_exit(0);
              }
              int status = 0;
              ::waitpid(background, &status, WUNTRACED);
              ::kill(background, SIGKILL);
              return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
          })) == 0);
    ::close(terminal);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // a fork may leave a lock of theirs held
TEST_CASE("log: a child forked while another thread writes a line can log") {
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    REQUIRE(nowhere >= 0);
    std::atomic<bool> end{false};
    std::thread talker([&] {
        while (!end) detail::write_line(nowhere, "a line");
    });
    int status = 0;
    for (int i = 0; i < 200 && status == 0; ++i) {
        status = test::status_of(test::forked([&] {
            detail::write_line(nowhere, "the child's line");
            return 0;
        }));
    }
    end = true;
    talker.join();
    ::close(nowhere);
    CHECK(status == 0);
}
#endif
}  // namespace
