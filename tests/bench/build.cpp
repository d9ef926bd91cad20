// memory, binary_size, compile_time: programs that are compiled for the purpose.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
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

// Runs the compiler; the milliseconds of processor time it took, and its memory.
ended compile(const words& arguments, std::string* warnings = nullptr) {
    words command = compiler();
    command.insert(command.end(), arguments.begin(), arguments.end());
    child running(command);
    const ended end = running.wait();
    if (end.status != 0) throw failure("the compiler refused: " + running.errors().substr(0, 2000));
    if (warnings != nullptr) *warnings += running.errors();
    return end;
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

struct cost {
    samples ms;
    samples mib;

    void add(const ended& compiled) {
        ms.push_back(compiled.cpu_ms);
        mib.push_back(compiled.peak_mib);
    }
};

constexpr int compilations = 9;

// Each extension, with the headers that it includes, beside the main header. Those whose library is not installed are left
// out.
void add_extensions(const std::string& main_header, table& out) {
    std::vector<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator("extensions"))
        names.push_back(each.path().filename().string());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        const std::string source = source_that_includes("\"" + name + "\"");
        cost with;
        cost without;
        try {
            for (int i = 0; i < compilations; ++i) {
                without.add(compile({"-fsyntax-only", main_header}));
                with.add(compile({"-fsyntax-only", "-Iextensions", "-I/usr/include/postgresql", source}));
            }
        } catch (const failure& why) {
            out.note("compile_time: " + name + " is left out: " + std::string(why.what()).substr(0, 200));
            continue;
        }
        out.add_ratio("-fsyntax-only, " + name + " beside ojs_shutdown.hpp", "ms", {with.ms, without.ms});
    }
}

// Bytes of code in what a file is compiled to that does nothing but include the header.
double code_bytes(const std::string& object) {
    child size({"size", object});
    size.await_line("");  // the heading
    const double code = std::stod(size.await_line(""));
    if (size.wait().status != 0) throw failure("size: " + size.errors());
    return code;
}

}  // namespace

void memory(table& out) {
    const std::string object = object_of("tests/bench/programs/noop_worker.cpp", "-O2");
    add_memory("dynamic", linked(object, {}), out);
    add_memory("static", linked(object, {"-static"}), out);
}

void binary_size(table& out) {
    std::string warnings;
    out.add("static stripped hello_worker, -O2", "bytes", samples{static_size("-O2", warnings)});
    out.add("static stripped hello_worker, -Os", "bytes", samples{static_size("-Os", warnings)},
            at_most(1400000));
    if (warnings.find("getaddrinfo") != std::string::npos) {
        out.note(
            "size: the linker warns that getaddrinfo in a static program needs glibc's shared libraries at "
            "run time;\n"
            "      only names other than localhost are looked up with it");
    }
}

void compile_time(table& out) {
    const std::string header = source_that_includes("\"ojs_shutdown.hpp\"");
    const std::string picojson = source_that_includes("<picojson.h>");
    const std::string object = scratch("included.o");
    cost whole;
    cost separate;
    cost floor;
    cost emitted;
    cost floor_emitted;
    for (int i = 0; i < compilations; ++i) {
        floor.add(compile({"-fsyntax-only", picojson}));
        whole.add(compile({"-fsyntax-only", header}));
        separate.add(compile({"-fsyntax-only", "-DOJS_SHUTDOWN_SEPARATE=1", header}));
        floor_emitted.add(compile({"-O2", "-c", picojson, "-o", object}));
        emitted.add(compile({"-O2", "-c", header, "-o", object}));
    }
    out.add_ratio("-fsyntax-only, header-only", "ms", {whole.ms, floor.ms}, at_most(1.9));
    out.add_ratio("-fsyntax-only, OJS_SHUTDOWN_SEPARATE", "ms", {separate.ms, floor.ms}, at_most(0.6));
    out.add_ratio("peak memory, -fsyntax-only, header-only", "MiB", {whole.mib, floor.mib}, at_most(1.5));
    out.add_ratio("peak memory, -O2 -c, header-only", "MiB", {emitted.mib, floor_emitted.mib}, at_most(2));
    out.add_ratio("-O2 -c beside -fsyntax-only, header-only", "ms", {emitted.ms, whole.ms}, at_most(1.2));
    out.add("code of a file that only includes it, -O2", "bytes", samples{code_bytes(object)}, at_most(512));
    add_extensions(header, out);
}

}  // namespace bench
