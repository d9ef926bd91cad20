// What PID 1 of a container does with signals: every kind, and hostile ones.
#include <signal.h>

#include "file_tree.hpp"
#include "text.hpp"

using namespace std::string_literals;
using namespace test;
using ojs::finding;
using ojs::severity;

namespace {

// We are process 7 there, called ./worker, started by `parent`.
file_tree& with_us(file_tree& tree, int parent = 1) {
    tree.process("self", 7, parent, "worker", "./worker", "worker");
    return tree.process("7", 7, parent, "worker", "./worker", "worker");
}

std::vector<finding> look(const file_tree& tree, const variables& set = {}, pid_t pid = 7) {
    ojs::detail::container_probe where;
    where.root = tree.root();
    where.environment = lookup(set);
    where.pid = pid;
    ojs::worker_options options;
    options.url = "memory:";
    std::vector<finding> out;
    for (const finding& each : doctor(options, std::chrono::milliseconds(500), where)) {
        if (each.id.compare(0, 4, "pid1") == 0) out.push_back(each);
    }
    return out;
}

#if OJS_SHUTDOWN_USE_PROC

// In a container whose PID 1 is another program than ours.
std::vector<finding> findings_of(const std::string& comm, const std::string& command,
                                 const variables& set = {}) {
    file_tree tree;
    with_us(tree).process("1", 1, 0, comm, command, "other").file("/.dockerenv", "");
    return look(tree, set);
}

}  // namespace

TEST_CASE("PID 1: every kind") {
    const struct {
        const char* comm;
        const char* command;
        const char* in_warning;
    } warned[] = {
        {"sh", "/bin/sh|-c|./worker --fast", "'/bin/sh -c ...', a shell"},
        {"bash", "bash|-c|./worker; true", "'bash -c ...'"},
        {"bash", "-bash", "'-bash'"},
        {"dash", "dash", "a shell"},
        {"ash", "ash", "a shell"},
        {"busybox", "/bin/busybox|sh|-c|x", "a shell"},
        {"entrypoint.sh", "/bin/sh|/entrypoint.sh|./worker", "'/bin/sh /entrypoint.sh ...', a shell"},
        {"node", "npm start", "'npm start', which may not"},
        {"sleep", "sleep|infinity", "sleep infinity"},
        {"kthread", "", "'kthread'"}};
    for (const auto& each : warned) {
        CAPTURE(each.command);
        const std::vector<finding> found = findings_of(each.comm, each.command);
        REQUIRE(found.size() == 1);
        CAPTURE(found[0].problem);
        CHECK(found[0].id == "pid1-wrapper");
        CHECK(found[0].severity == severity::warning);
        for (const char* part : {each.in_warning, "docker"}) CHECK(holds(found[0].problem, part));
        for (const char* part : {"CMD [\"./worker\"]", "exec", "tini"}) CHECK(holds(found[0].fix, part));
        file_tree outside;  // of a container nobody is warned
        with_us(outside).process("1", 1, 0, each.comm, each.command, "other");
        CHECK(look(outside).empty());
    }
    for (const std::string both :
         {"tini /sbin/tini|--|./worker", "tini-static tini-static|./worker",
          "x /sbin/docker-init|--|./worker", "docker-init /sbin/docker-init|--|./worker",
          "ojs-init ./worker|--init", "runit runit", "s6-svscan s6-svscan|/run/service",
          "s6-linux-init s6-linux-init", "systemd /sbin/init", "init /init",
          "supervisord /usr/bin/python3|/usr/bin/supervisord", "my_init /usr/bin/python3|-u|/sbin/my_init",
          "pause /pause"}) {
        CAPTURE(both);
        const std::size_t blank = both.find(' ');
        CHECK(findings_of(both.substr(0, blank), both.substr(blank + 1)).empty());
    }
}

TEST_CASE("PID 1: we are it, or another run of our program is") {
    file_tree tree;
    tree.file("/.dockerenv", "");
    with_us(tree).process("1", 1, 0, "worker", "./worker", "worker");
    CHECK(look(tree).empty());
    file_tree us;
    us.file("/.dockerenv", "").process("self", 1, 0, "worker", "./worker");
    CHECK(look(us, {}, 1).empty());
    // Told by the name where the executable cannot be seen.
    file_tree unreadable;
    unreadable.file("/.dockerenv", "")
        .process("self", 7, 0, "worker", "/app/worker")
        .process("1", 1, 0, "w", "worker|x");
    CHECK(look(unreadable).empty());
}

TEST_CASE("PID 1: one that cannot be read, or is of another namespace, is warned about without a name") {
    file_tree hidden;
    with_us(hidden).file("/.dockerenv", "");
    REQUIRE(look(hidden).size() == 1);
    CHECK(holds(look(hidden)[0].problem, "cannot be read"));
    file_tree foreign;  // a /proc in which we have another number
    with_us(foreign).process("1", 1, 0, "systemd", "/sbin/init").file("/.dockerenv", "");
    REQUIRE(look(foreign, {}, 8).size() == 1);
    CHECK(holds(look(foreign, {}, 8)[0].problem, "cannot be read"));
    CHECK(look(foreign, {}, 1).empty());
}

TEST_CASE("PID 1: a shell between an init and us is found, unless PID 1 is no ancestor of ours") {
    for (const int middle : {1, 0}) {
        file_tree tree;
        with_us(tree, 6).file("/.dockerenv", "").process("1", 1, 0, "tini", "tini|--|sh|-c|./worker");
        tree.process("6", 6, 5, "env", "env|./worker").process("5", 5, middle, "sh", "sh|-c|env ./worker");
        const std::vector<finding> found = look(tree);
        CHECK(found.size() == (middle == 1 ? 1U : 0U));
        if (middle == 1) CHECK(holds(found[0].problem, "started by 'sh -c ...'"));
    }
    file_tree circle;  // no end, but an end to the search
    with_us(circle, 6).file("/.dockerenv", "").process("1", 1, 0, "tini", "tini|--|x");
    circle.process("6", 6, 5, "sh", "sh").process("5", 5, 6, "sh", "sh");
    CHECK(look(circle).empty());
}

TEST_CASE("PID 1: dumb-init and SIGTSTP") {
    const std::string tstp = std::to_string(SIGTSTP);
    for (const std::string& options : {"-c"s, "-vc"s, "--single-child"s, "--single"s, "-r|15:3|-c"s,
                                       "-r|" + tstp + ":" + tstp, "-r" + tstp + ":0", "-vr" + tstp + ":15",
                                       "--rewrite|" + tstp + ":15", "--rewrite=" + tstp + ":15"}) {
        CAPTURE(options);
        CHECK(findings_of("dumb-init", "dumb-init|" + options + "|./worker").empty());
    }
    for (const std::string& command :
         {"dumb-init|./worker"s, "/usr/bin/dumb-init|--|./worker"s, "dumb-init|-v|--|./worker"s,
          "dumb-init|--|./worker|-c"s, "dumb-init|./worker|--single-child"s, "dumb-init|-r|15:3|--|./worker"s,
          "dumb-init|-r|" + tstp + ":" + std::to_string(SIGSTOP) + "|./worker",
          "dumb-init|--rewrite|junk|./worker"s, "dumb-init|-r"s}) {
        CAPTURE(command);
        const std::vector<finding> found = findings_of("dumb-init", command);
        REQUIRE(found.size() == 1);
        CHECK(found[0].id == "pid1-sigtstp");
        CHECK(found[0].severity == severity::warning);
        CHECK(holds(found[0].problem, "SIGSTOP"));
        for (const char* fix : {"--single-child", "--rewrite", "--signal quiet", "POST /quiet"})
            CHECK(holds(found[0].fix, fix));
        CHECK(findings_of("dumb-init", command, {{"DUMB_INIT_SETSID", "0"}}).empty());
        CHECK(!findings_of("dumb-init", command, {{"DUMB_INIT_SETSID", "1"}}).empty());
    }
}

TEST_CASE("PID 1: catatonit drops SIGTSTP: an info, not a warning") {
    for (const char* comm : {"catatonit", "podman-init"}) {
        const std::vector<finding> found = findings_of(comm, "/run/podman-init|--|./worker");
        REQUIRE(found.size() == 1);
        CHECK(found[0].id == "pid1-sigtstp");
        CHECK(found[0].severity == severity::info);
        CHECK(!holds(found[0].problem, "SIGSTOP"));
    }
}

TEST_CASE("PID 1: its command line is shown up to its first argument, which is cut where a value begins") {
    const struct {
        const char* command;
        const char* shown;
    } cases[] = {{"sh|-c|OJS_AUTH_TOKEN=canary ./worker --password=canary", "sh -c ..."},
                 {"sh|/entrypoint.sh|--password|canary", "sh /entrypoint.sh ..."},
                 {"sh|PASSWORD=canary", "sh PASSWORD=..."},
                 {"sh: run --password canary", "sh: run ..."},  // a title, in one string
                 {"sh|a\tcanary\ncanary", "sh a ..."},
                 {"sh", "sh"}};
    for (const auto& each : cases) {
        CAPTURE(each.command);
        const std::vector<finding> found = findings_of("sh", each.command);
        REQUIRE(found.size() == 1);
        CHECK(holds(found[0].problem, " PID 1 is '"s + each.shown + "', a shell"));
        CHECK(!holds(found[0].problem, "canary"));
    }
    CHECK(findings_of("sh", "sh|" + std::string(500, 'x'))[0].problem.size() < 400);
}

#else

TEST_CASE("PID 1: without /proc, a process in a container that is not PID 1 is warned in general terms") {
    file_tree tree;
    with_us(tree).process("1", 1, 0, "tini", "tini|--|./worker").file("/.dockerenv", "");
    REQUIRE(look(tree).size() == 1);
    CHECK(holds(look(tree)[0].problem, "cannot be read"));
    CHECK(look(tree, {}, 1).empty());
}

#endif
