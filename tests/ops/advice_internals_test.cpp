// Advice: whether a stop fits into the time it is granted, with the fix, and what PID 1 of a container does with signals.
#include "findings.hpp"

using namespace std::string_literals;
using namespace test;
using ojs::detail::check_budget;
using std::chrono::milliseconds;

namespace {
ojs::worker_options with(milliseconds grace, milliseconds container, milliseconds prestop = 0ms,
                         milliseconds stop = 5s) {
    ojs::worker_options out;
    out.times.shutdown_grace_period = grace;
    out.container_grace_period = container;
    out.prestop_delay = prestop;
    out.times.stop_timeout = stop;
    return out;
}
}  // namespace

TEST_CASE("budget: the timeouts of shutdown steps count toward the time that a stop needs") {
    CHECK(check_budget(with(30s, 45s), 10s).empty());
    const std::vector<finding> tight = check_budget(with(30s, 45s), 11s);
    REQUIRE(tight.size() == 1);
    CHECK(tight[0].id == "budget-tight");
    CHECK(holds(tight[0].problem, "may take 16s"));
    CHECK(holds(tight[0].fix, " to 46s"));
    CHECK(check_budget(with(30s, 1h), ojs::no_limit).size() == 1);
    CHECK(check_budget(with(ojs::no_limit, 60s)).size() == 1);
    CHECK(holds(check_budget(with(ojs::no_limit, 60s))[0].problem, "unlimited grace period"));
    CHECK(holds(check_budget(with(ojs::no_limit, 60s))[0].fix, "set OJS_SHUTDOWN_GRACE_PERIOD to 50s"));
}

TEST_CASE("budget: container_grace_period is unset -> the platform's default counts, and findings name the platform") {
    const std::string any = "terminationGracePeriodSeconds, stop_grace_period or docker stop -t";
    const struct {
        const char* variable;
        milliseconds granted;
        const char* id;
        std::string name;
        std::string setting;
    } cases[] = {
        {"KUBERNETES_SERVICE_HOST", 30s, "budget-kubernetes", "Kubernetes", "terminationGracePeriodSeconds"},
        {"ECS_CONTAINER_METADATA_URI", 30s, "budget-ecs", "Amazon ECS", "stopTimeout"},
        {"CLOUD_RUN_JOB", 10s, "budget-cloud-run", "Cloud Run", ""},
        {"DYNO", 30s, "budget-heroku", "Heroku", ""},
        {"FLY_MACHINE_ID", 5s, "budget-fly", "Fly.io", "kill_timeout in fly.toml"},
        {"NOMAD_ALLOC_ID", 5s, "budget-nomad", "Nomad", "kill_timeout"},
        {"container=docker", 10s, "budget-docker", "Docker", "stop_grace_period or docker stop -t"},
        {"container=podman", 10s, "budget-podman", "Podman", "--stop-timeout or podman stop -t"},
        {"container=lxc", 10s, "budget-container", "the container", any},
    };
    for (const auto& each : cases) {
        CAPTURE(each.variable);
        const std::string variable = each.variable;
        const std::size_t end = std::min(variable.find('='), variable.size());
        const ojs::detail::container_info info = ojs::detail::detect_container(
            probe("/nowhere", {{variable.substr(0, end), end < variable.size() ? variable.substr(end + 1) : "1"}}));
        const milliseconds fitting = each.granted - 5s;  // the longest grace period
        const std::string granted = ojs::format_duration(each.granted) + " that " + each.name + " grants" +
                                    (each.setting.empty() ? "" : " unless " + each.setting + " says otherwise");
        worker_options options = with(fitting, 0s);
        options.heartbeat_interval = fitting - 1ms;
        const std::vector<finding> fits = check_budget(options, 0s, info);
        REQUIRE(fits.size() == 1);
        CHECK(fits[0].id == each.id);
        CHECK(fits[0].severity == severity::info);
        CHECK(holds(fits[0].problem, granted));
        options.times.shutdown_grace_period += 1s;
        const std::vector<finding> longer = check_budget(options, 0s, info);
        REQUIRE(longer.size() == 1);
        CHECK(longer[0].id == "budget-unknown");
        CHECK(longer[0].severity == severity::warning);
        CHECK(holds(longer[0].problem, granted));
        const std::string fix = each.setting.empty() ? each.name + " grants no more time"
                                                     : "raise " + each.setting + " of " + each.name + " to " +
                                                           ojs::format_duration(fitting + 11s);
        CHECK(holds(longer[0].fix, fix));
        CHECK(holds(longer[0].fix, "OJS_SHUTDOWN_GRACE_PERIOD to 20s or less") == (each.granted == 30s));
        CHECK(check_budget(with(fitting, 0s, 1s), 0s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s), 1s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s, 0s, 6s), 0s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(30s, 60s), 0s, info).empty());
        if (each.name == "Cloud Run")  // of a set time that is too short
            CHECK(check_budget(with(30s, 10s), 0s, info)[0].fix ==
                  "Cloud Run grants no more time: let longer jobs save checkpoints");
    }
}

// [River shutdown code (d)]
TEST_CASE("budget: a cancel_grace that stop_timeout cuts short is reported with the value that works") {
    worker_options options = with(30s, 0s);
    options.times.cancel_grace = 2250ms;  // half of what the last heartbeat leaves of 5 s
    CHECK(check_budget(options).empty());
    options.times.cancel_grace = 2251ms;
    const std::vector<finding> cut = check_budget(options);
    check_found(cut, "cancel-grace-cut", severity::warning, "2s251ms");
    CHECK(holds(cut[0].fix, "5s751ms"));
    options.times.stop_timeout = 5751ms;
    CHECK(check_budget(options).empty());
    options.times.cancel_grace = 0ms;
    options.times.reclaim_grace = 1h;
    CHECK(check_budget(options).size() == 1);
    options.times = {10s, 0s, 10s, 0s, 15s};  // River's stages
    CHECK(check_budget(options).empty());
}

// [GS 6.3 (a)] [GS 6.3 (b)] [GS 8.1 (b)] [GS 8.2 (b)] [Website Grace period (b)] [Website Kubernetes] [Website preStop]
TEST_CASE("budget: the grace period exceeds or barely fits container_grace_period -> the finding has values that fit") {
    const struct {
        milliseconds grace, container, prestop, stop;
        const char* id = nullptr;  // null: it fits
        const char* recommended = nullptr;
        const char* shorter = nullptr;  // grace period that fits; null: there is none
    } cases[] = {
        {30s, 0s, 0s, 5s},
        {30s, 0s, 5s, 5s},
        {30s, 35s, 0s, 5s},
        {30s, 40s, 5s, 5s},
        {30s, 50s, 0s, 20s},
        {30s, 30s, 0s, 5s, "budget-exceeded", "40s", "20s"},
        {30s, 10s, 0s, 5s, "budget-exceeded", "40s"},
        {30s, 30s, 0s, 100ms, "budget-exceeded", "40s", "20s"},
        {30s, 29s, 0s, 5s, "budget-exceeded", "40s", "19s"},
        {30s, 35s, 5s, 5s, "budget-exceeded", "45s", "20s"},
        {25s, 30s, 15s, 5s, "budget-exceeded", "50s", "5s"},
        {30s, 1ms, 0s, 5s, "budget-exceeded", "40s"},
        {30s, 34999ms, 0s, 5s, "budget-tight", "40s", "24s999ms"},
        {30s, 31s, 0s, 5s, "budget-tight", "40s", "21s"},
        {30s, 39s, 5s, 5s, "budget-tight", "45s", "24s"},
        {30s, 45s, 0s, 20s, "budget-tight", "50s", "25s"},
        {30s, 34s, 0s, 100ms, "budget-tight", "40s", "24s"},
    };
    for (const auto& each : cases) {
        const ojs::worker_options options = with(each.grace, each.container, each.prestop, each.stop);
        const std::vector<finding> found = check_budget(options);
        CAPTURE(format_findings(found));
        REQUIRE(found.size() == (each.id == nullptr ? 0 : 1));
        if (found.empty()) continue;
        CHECK(found[0].id == each.id);
        CHECK(found[0].severity == (found[0].id == "budget-tight" ? severity::warning : severity::error));
        CHECK(holds(found[0].problem, "grace period of " + ojs::format_duration(each.grace)));
        CHECK(holds(found[0].problem, "the " + ojs::format_duration(each.container) + " the container"));
        CHECK(holds(found[0].problem, "preStop") == (each.prestop > 0s));
        CHECK(holds(found[0].fix, std::string(" to ") + each.recommended + " "));
        CHECK(holds(found[0].fix, "OJS_SHUTDOWN_GRACE_PERIOD") == (each.shorter != nullptr));
        // Either fix removes the finding.
        ojs::worker_options longer = options;
        longer.container_grace_period = *ojs::parse_duration(each.recommended);
        CHECK(check_budget(longer).empty());
        if (each.shorter == nullptr) continue;
        CHECK(holds(found[0].fix, std::string("to ") + each.shorter + " or less"));
        ojs::worker_options shorter = options;
        shorter.times.shutdown_grace_period = *ojs::parse_duration(each.shorter);
        for (const finding& left : check_budget(shorter)) CHECK(left.id == "grace-below-heartbeat");
    }
}

// [GS 6.2]
TEST_CASE("budget: a grace period no longer than the heartbeat interval is a warning") {
    ojs::worker_options options = with(5s, 0s);
    check_found(check_budget(options), "grace-below-heartbeat", severity::warning, "heartbeat");
    CHECK(holds(check_budget(options)[0].fix, "15s"));
    options.times.shutdown_grace_period = 5001ms;
    CHECK(check_budget(options).empty());
}

#if OJS_SHUTDOWN_USE_PROC

namespace {
std::vector<finding> look(const file_tree& tree, const variables& set = {}, pid_t pid = 7) {
    std::vector<finding> out;
    for (const finding& each : doctor(quiet_options(), ojs::ops_options(), 500ms, probe(tree.root(), set, pid))) {
        if (each.id.compare(0, 4, "pid1") == 0) out.push_back(each);
    }
    return out;
}

// In a container whose PID 1 is another program than ours.
std::vector<finding> findings_of(const std::string& comm, const std::string& command, const variables& set = {}) {
    file_tree tree;
    with_us(tree).process("1", 1, 0, comm, command, "other").file("/.dockerenv", "");
    return look(tree, set);
}
}  // namespace

// [GS 4.3 (c)]
TEST_CASE("pid1: a PID 1 that passes no signals on is reported with its command, without later arguments") {
    const struct {
        const char* comm;
        const char* command;
        const char* problem;  // null: no finding
    } rows[] = {{"sh", "/bin/sh|-c|./worker --fast", " PID 1 is '/bin/sh -c ...', a shell"},
                {"bash", "-bash", "'-bash'"},
                {"dash", "dash", "a shell"},
                {"busybox", "/bin/busybox|sh|-c|x", "a shell"},
                {"entrypoint.sh", "/bin/sh|/entrypoint.sh|./worker", "'/bin/sh /entrypoint.sh ...', a shell"},
                {"sh", "sh|-c|OJS_AUTH_TOKEN=canary ./worker --password=canary", "'sh -c ...'"},
                {"sh", "sh|/entrypoint.sh|--password|canary", "'sh /entrypoint.sh ...'"},
                {"sh", "sh|PASSWORD=canary", "'sh PASSWORD=...'"},
                {"sh", "sh: run --password canary", "'sh: run ...'"},  // a title, in one string
                {"sh", "sh|a\tcanary\ncanary", "'sh a ...'"},
                {"node", "npm start", "'npm start', which may not"},
                {"kthread", "", "'kthread'"},
                {"catatonit", "/run/podman-init|--|./worker", "does not pass SIGTSTP on"},
                {"tini", "/sbin/tini|--|./worker", nullptr},
                {"tini-static", "tini-static|./worker", nullptr},
                {"docker-init", "/sbin/docker-init|--|./worker", nullptr},
                {"ojs-init", "./worker|--init", nullptr},
                {"runit", "runit", nullptr},
                {"s6-svscan", "s6-svscan|/run/service", nullptr},
                {"systemd", "/sbin/init", nullptr},
                {"init", "/init", nullptr},
                {"supervisord", "/usr/bin/python3|/usr/bin/supervisord", nullptr},
                {"my_init", "/usr/bin/python3|-u|/sbin/my_init", nullptr},
                {"pause", "/pause", nullptr}};
    for (const auto& each : rows) {
        CAPTURE(each.command);
        const std::vector<finding> found = findings_of(each.comm, each.command);
        CAPTURE(format_findings(found));
        REQUIRE(found.size() == (each.problem == nullptr ? 0 : 1));
        file_tree outside;  // of a container nobody is warned
        with_us(outside).process("1", 1, 0, each.comm, each.command, "other");
        CHECK(look(outside).empty());
        if (found.empty()) continue;
        CHECK(holds(found[0].problem, each.problem));
        CHECK(!holds(found[0].problem, "canary"));
        const bool drops_one = holds(each.problem, "SIGTSTP");
        CHECK(found[0].id == (drops_one ? "pid1-sigtstp" : "pid1-wrapper"));
        CHECK(found[0].severity == (drops_one ? severity::info : severity::warning));
        if (drops_one) continue;
        CHECK(holds(found[0].problem, "docker"));
        for (const char* part : {"CMD [\"./worker\"]", "exec", "tini"}) CHECK(holds(found[0].fix, part));
    }
    CHECK(findings_of("sh", "sh|" + std::string(500, 'x'))[0].problem.size() < 400);
}

TEST_CASE("pid1: the program itself, or another run of it, as PID 1 gives no finding") {
    file_tree tree;
    tree.file("/.dockerenv", "");
    with_us(tree).process("1", 1, 0, "worker", "./worker", "worker");
    CHECK(look(tree).empty());
    file_tree us;
    us.file("/.dockerenv", "").process("self", 1, 0, "worker", "./worker");
    CHECK(look(us, {}, 1).empty());
    // Recognised by its name if the executable cannot be read.
    file_tree unreadable;
    unreadable.file("/.dockerenv", "")
        .process("self", 7, 0, "worker", "/app/worker")
        .process("1", 1, 0, "w", "worker|x");
    CHECK(look(unreadable).empty());
}

TEST_CASE("pid1: a PID 1 that is unreadable or of another namespace gives a warning without a name") {
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

// [GS 4.3 (c)]
TEST_CASE("pid1: a shell between an init and the process is reported only if PID 1 is an ancestor") {
    for (const int middle : {1, 0}) {
        file_tree tree;
        with_us(tree, 6).file("/.dockerenv", "").process("1", 1, 0, "tini", "tini|--|sh|-c|./worker");
        tree.process("6", 6, 5, "env", "env|./worker").process("5", 5, middle, "sh", "sh|-c|env ./worker");
        const std::vector<finding> found = look(tree);
        CHECK(found.size() == (middle == 1 ? 1U : 0U));
        if (middle == 1) CHECK(holds(found[0].problem, "started by 'sh -c ...', a shell"));
    }
    file_tree circle;  // no end, but an end to the search
    with_us(circle, 6).file("/.dockerenv", "").process("1", 1, 0, "tini", "tini|--|x");
    circle.process("6", 6, 5, "sh", "sh").process("5", 5, 6, "sh", "sh");
    CHECK(look(circle).empty());
}

// [GS 8.1 (a)]
TEST_CASE("pid1: dumb-init is a warning unless its options or environment keep SIGTSTP from becoming SIGSTOP") {
    const std::string tstp = std::to_string(SIGTSTP);
    for (const std::string& options :
         {"-vc"s, "--single-child"s, "-r|15:3|-c"s, "-r|" + tstp + ":" + tstp, "-r" + tstp + ":0", "-vr" + tstp + ":15",
          "--rewrite|" + tstp + ":15", "--rewrite=" + tstp + ":15"}) {
        CAPTURE(options);
        CHECK(findings_of("dumb-init", "dumb-init|" + options + "|./worker").empty());
    }
    for (const std::string& command :
         {"/usr/bin/dumb-init|--|./worker"s, "dumb-init|--|./worker|-c"s, "dumb-init|./worker|--single-child"s,
          "dumb-init|-r|15:3|--|./worker"s, "dumb-init|-r|" + tstp + ":" + std::to_string(SIGSTOP) + "|./worker",
          "dumb-init|-r"s}) {
        CAPTURE(command);
        const std::vector<finding> found = findings_of("dumb-init", command);
        check_found(found, "pid1-sigtstp", severity::warning, "SIGSTOP");
        for (const char* fix : {"--single-child", "--rewrite", "--signal quiet", "POST /quiet"})
            CHECK(holds(found[0].fix, fix));
        CHECK(findings_of("dumb-init", command, {{"DUMB_INIT_SETSID", "0"}}).empty());
        CHECK(!findings_of("dumb-init", command, {{"DUMB_INIT_SETSID", "1"}}).empty());
    }
}

#endif
