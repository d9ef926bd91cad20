// spool: what claiming and settling a job in a directory costs beside the system calls it cannot do without.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "bench.hpp"
#include "ojs_spool.hpp"

namespace bench {
namespace {

constexpr int rounds = 15;
constexpr int jobs_a_round = 100;
constexpr double ns_in_us = 1000;

void must(bool worked, const char* what) {
    if (!worked) throw failure(std::string("spool: ") + what);
}

class descriptor {
  public:
    descriptor(int folder, const std::string& name, int flags)
        : fd_(::openat(folder, name.c_str(), flags | O_CLOEXEC, 0600)) {
        must(fd_ >= 0, "cannot open a file");
    }
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    ~descriptor() { ::close(fd_); }
    int get() const { return fd_; }

  private:
    const int fd_;
};

std::string name_of(int number) {
    char text[32];
    std::snprintf(text, sizeof text, "job-%06d.json", number);
    return text;
}

// Jobs in request/, as cp and mv put them there.
void put_jobs(int request, const std::string& text) {
    for (int i = 0; i < jobs_a_round; ++i) {
        {
            const descriptor file(request, ".new", O_WRONLY | O_CREAT | O_TRUNC);
            must(::write(file.get(), text.data(), text.size()) >= 0, "cannot write a file");
        }
        must(::renameat(request, ".new", request, name_of(i).c_str()) == 0, "cannot rename a file");
    }
    ::fsync(request);
}

void remove_jobs(int folder) {
    for (int i = 0; i < jobs_a_round; ++i) ::unlinkat(folder, name_of(i).c_str(), 0);
    ::fsync(folder);
}

const std::string envelope = R"({"type":"text.count","args":["/etc/passwd",12],"queue":"default"})";
const std::string result = R"({"words":12,"lines":3})";
const std::string settled_envelope =
    R"({"type":"text.count","args":["/etc/passwd",12],"queue":"default","attempt":1,"state":"completed",)"
    R"("result":{"words":12,"lines":3},"completed_at":"2026-01-02T03:04:05.678Z"})";

class place {
  public:
    explicit place(const std::string& path)
        : made_(make(path)),
          root_(AT_FDCWD, path, O_RDONLY | O_DIRECTORY),
          request_(root_.get(), "request", O_RDONLY | O_DIRECTORY),
          processing_(root_.get(), "processing", O_RDONLY | O_DIRECTORY),
          done_(root_.get(), "done", O_RDONLY | O_DIRECTORY) {}

    int request() const { return request_.get(); }
    int processing() const { return processing_.get(); }
    int done() const { return done_.get(); }

  private:
    static bool make(const std::string& path) {
        ::mkdir(path.c_str(), 0700);
        for (const char* each : {"/request", "/processing", "/done"}) ::mkdir((path + each).c_str(), 0700);
        return true;
    }
    const bool made_;
    const descriptor root_;
    const descriptor request_;
    const descriptor processing_;
    const descriptor done_;
};

// Microseconds for one job.
template <class OneJob>
double time_jobs(const place& where, OneJob one_job) {
    put_jobs(where.request(), envelope);
    const std::int64_t began = monotonic_ns();
    for (int i = 0; i < jobs_a_round; ++i) one_job(name_of(i));
    const double took = static_cast<double>(monotonic_ns() - began) / jobs_a_round / ns_in_us;
    remove_jobs(where.done());
    return took;
}

class our_spool {
  public:
    explicit our_spool(const std::string& path) : opened_(ojs::open_spool(options(path))) {
        if (!opened_) throw failure(opened_.error().text);
        worker_.queues = {"default"};
        request_.worker = &worker_;
    }

    void run_one(const std::string& with_result) {
        const auto claimed = (*opened_)->fetch(request_, ojs::deadline_after(guard));
        must(claimed && claimed->size() == 1, "no job came");
        const auto settled = (*opened_)->ack({claimed->front().id, with_result}, ojs::deadline_after(guard));
        must(settled && *settled == ojs::settled::accepted, "the ACK was not accepted");
    }

  private:
    static ojs::spool_options options(const std::string& path) {
        ojs::spool_options out;
        out.directory = path;
        return out;
    }
    ojs::worker_identity worker_;
    ojs::fetch_request request_;
    ojs::result<ojs::transport_ref> opened_;
};

void bare_job(const place& where, const std::string& name) {
    must(::renameat(where.request(), name.c_str(), where.processing(), name.c_str()) == 0, "cannot rename");
    must(::renameat(where.processing(), name.c_str(), where.done(), name.c_str()) == 0, "cannot rename");
    must(::fsync(where.done()) == 0, "cannot fsync");
}

void bare_job_with_result(const place& where, const std::string& name) {
    must(::renameat(where.request(), name.c_str(), where.processing(), name.c_str()) == 0, "cannot rename");
    {
        const descriptor file(where.processing(), ".new", O_WRONLY | O_CREAT | O_EXCL);
        must(::write(file.get(), settled_envelope.data(), settled_envelope.size()) >= 0, "cannot write");
        must(::fsync(file.get()) == 0, "cannot fsync");
    }
    must(::renameat(where.processing(), ".new", where.processing(), name.c_str()) == 0, "cannot rename");
    must(::renameat(where.processing(), name.c_str(), where.done(), name.c_str()) == 0, "cannot rename");
    must(::fsync(where.done()) == 0, "cannot fsync");
}

}  // namespace

void spool(table& out) {
    const std::string path = scratch("spool");
    const std::string bare_path = scratch("bare_spool");
    const place where(path);
    const place bare(bare_path);
    our_spool ours(path);
    out.add_ratio(
        "spool: claim + settle of a job", "us",
        interleave(
            rounds, [&] { return time_jobs(where, [&](const std::string&) { ours.run_one(""); }); },
            [&] { return time_jobs(bare, [&](const std::string& name) { bare_job(bare, name); }); }),
        at_most(3));
    out.add_ratio(
        "spool: claim + settle, with a result", "us",
        interleave(
            rounds, [&] { return time_jobs(where, [&](const std::string&) { ours.run_one(result); }); },
            [&] {
                return time_jobs(bare, [&](const std::string& name) { bare_job_with_result(bare, name); });
            }),
        at_most(3));
}

}  // namespace bench
