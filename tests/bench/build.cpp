// memory, binary_size, compile_time: programs that are compiled for the purpose.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench.hpp"

namespace bench {
namespace {

using words = std::vector<std::string>;

std::string setting(const char* name, const char* fallback) {
    const char* set = ::getenv(name);
    return set != nullptr && *set != '\0' ? set : fallback;
}

// $CXX may be a launcher and its compiler ("ccache g++").
words compiler() {
    words out;
    std::istringstream text(setting("CXX", "c++"));
    for (std::string word; text >> word;) out.push_back(word);
    for (const char* flag : {"-std=c++17", "-pthread", "-isystem", "third_party/include"})
        out.push_back(flag);
    out.push_back("-I" + setting("OJS_BENCH_INCLUDE", "."));
    return out;
}

// Runs the compiler; the milliseconds of processor time it took.
double compile(const words& arguments, std::string* warnings = nullptr) {
    words command = compiler();
    command.insert(command.end(), arguments.begin(), arguments.end());
    child running(command);
    const ended end = running.wait();
    if (end.status != 0) throw failure("the compiler refused: " + running.errors().substr(0, 2000));
    if (warnings != nullptr) *warnings += running.errors();
    return end.cpu_ms;
}

std::string object_of(const std::string& source, const std::string& optimisation) {
    const std::string out = scratch("object.o");
    compile({optimisation, "-c", source, "-o", out});
    return out;
}

std::string linked(const std::string& object, const words& flags, std::string* warnings = nullptr) {
    const std::string out = scratch("program");
    words arguments = flags;
    arguments.insert(arguments.end(), {object, "-o", out});
    compile(arguments, warnings);
    return out;
}

// ---- memory ----

struct memory_use {
    double rss_mib;
    double peak_mib;
};

memory_use memory_of(const std::string& program) {
    constexpr int done = 500;
    backend jobs;
    jobs.push("bench", done);
    child worker({program}, worker_environment(jobs, 10, new_worker_id()));
    jobs.await_jobs_in("completed", done);
    await_asleep(worker.pid());
    const std::string status = read_file("/proc/" + std::to_string(worker.pid()) + "/status");
    worker.signal(SIGTERM);
    worker.wait();
    return {static_cast<double>(number_after(status, "VmRSS:")) / 1024,
            static_cast<double>(number_after(status, "VmHWM:")) / 1024};
}

void add_memory(const std::string& linkage, const std::string& program, table& out) {
    constexpr int rounds = 5;
    samples now;
    samples peak;
    for (int i = 0; i < rounds; ++i) {
        const memory_use used = memory_of(program);
        now.push_back(used.rss_mib);
        peak.push_back(used.peak_mib);
    }
    out.add("RSS at concurrency 10, " + linkage, "MiB", now, at_most(6));
    out.note("memory: " + linkage + ", the peak was " + text_of(median(peak)) + " MiB");
}

// ---- size ----

double static_size(const std::string& optimisation, std::string& warnings) {
    const std::string object = object_of("examples/hello_worker.cpp", optimisation);
    return static_cast<double>(std::filesystem::file_size(linked(object, {"-static", "-s"}, &warnings)));
}

// ---- compile time ----

std::string source_that_includes(const std::string& line) {
    const std::string path = scratch("source.cpp");
    std::ofstream(path) << "#include " << line << "\n";
    return path;
}

}  // namespace

void memory(table& out) {
    const std::string object = object_of("tests/bench/programs/noop_worker.cpp", "-O2");
    add_memory("dynamic", linked(object, {}), out);
    add_memory("static", linked(object, {"-static"}), out);
}

void binary_size(table& out) {
    std::string warnings;
    out.add("static stripped hello_worker, -O2", "bytes", samples{static_size("-O2", warnings)},
            at_most(2600000));
    out.add("static stripped hello_worker, -Os", "bytes", samples{static_size("-Os", warnings)});
    if (warnings.find("getaddrinfo") != std::string::npos) {
        out.note(
            "size: the linker warns that getaddrinfo in a static program needs glibc's shared libraries at "
            "run time;\n"
            "      only names other than localhost are looked up with it");
    }
}

void compile_time(table& out) {
    constexpr int rounds = 9;
    const std::string header = source_that_includes("\"ojs_shutdown.hpp\"");
    const std::string picojson = source_that_includes("<picojson.h>");
    samples whole;
    samples separate;
    samples floor;
    for (int i = 0; i < rounds; ++i) {
        floor.push_back(compile({"-fsyntax-only", picojson}));
        whole.push_back(compile({"-fsyntax-only", header}));
        separate.push_back(compile({"-fsyntax-only", "-DOJS_SHUTDOWN_SEPARATE=1", header}));
    }
    out.add_ratio("-fsyntax-only, header-only", "ms", {whole, floor}, at_most(2));
    out.add_ratio("-fsyntax-only, OJS_SHUTDOWN_SEPARATE", "ms", {separate, floor}, at_most(0.6));
}

}  // namespace bench
