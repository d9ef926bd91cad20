// What one job of a spool directory costs beside the system calls it cannot do without.
#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "ojs_spool.hpp"
#include "roles.hpp"

namespace bench {
namespace {
namespace fs = std::filesystem;

constexpr int jobs_a_round = 100;
constexpr const char* job_text = R"({"type":"text.count","args":["/etc/passwd",12],"queue":"default"})";
constexpr const char* result = R"({"words":12,"lines":3})";
constexpr std::string_view settled_text =
    R"({"type":"text.count","args":["/etc/passwd",12],"queue":"default","attempt":1,"state":"completed",)"
    R"("result":{"words":12,"lines":3},"completed_at":"2026-01-02T03:04:05.678Z"})";

void sync_folder(const fs::path& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(fd >= 0 && ::fsync(fd) == 0, "fsync");
    ::close(fd);
}

// Microseconds for one job; each file is put there as cp and mv do.
template <class OneJob>
double time_jobs(const fs::path& root, OneJob one_job) {
    for (const char* each : {"request", "processing", "done"}) fs::create_directories(root / each);
    for (int i = 0; i < jobs_a_round; ++i) {
        std::ofstream(root / "request/.new") << job_text;
        fs::rename(root / "request/.new", root / "request" / ("job-" + std::to_string(i) + ".json"));
    }
    sync_folder(root / "request");
    const double began = monotonic_ns();
    for (int i = 0; i < jobs_a_round; ++i) one_job("job-" + std::to_string(i) + ".json");
    const double took = (monotonic_ns() - began) / jobs_a_round / 1000;
    for (const auto& each : fs::directory_iterator(root / "done")) fs::remove(each);
    sync_folder(root / "done");
    return took;
}

// FETCH: the file is examined, read and claimed; then an ACK.
void claim_and_settle(ojs::transport& spool, const std::string& with_result) {
    ojs::worker_identity worker;
    worker.queues = {"default"};
    ojs::fetch_request request;
    request.worker = &worker;
    const auto deadline = ojs::deadline_after(std::chrono::seconds(60));
    const auto claimed = spool.fetch(request, deadline);
    must(claimed && claimed->size() == 1, "FETCH");
    const auto settled = spool.ack({{{}, claimed->front().id}, with_result}, deadline);
    must(settled && *settled == ojs::settle_result::accepted, "ACK");
}

void bare_job(const fs::path& root, const std::string& name, bool has_result) {
    const fs::path claimed = root / "processing" / name;
    must(::rename((root / "request" / name).c_str(), claimed.c_str()) == 0, "rename");
    if (has_result) {
        const fs::path written = root / "processing/.new";
        const int fd = ::open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        must(::write(fd, settled_text.data(), settled_text.size()) > 0 && ::fsync(fd) == 0, "write");
        ::close(fd);
        must(::rename(written.c_str(), claimed.c_str()) == 0, "rename");
    }
    must(::rename(claimed.c_str(), (root / "done" / name).c_str()) == 0, "rename");
    sync_folder(root / "done");
}

// Prints what was measured and its floor, round by round. Arguments: a folder; 1 for jobs with a result.
int spool(const arguments& given) {
    const fs::path root = given.at(0);
    const bool has_result = given.at(1) == "1";
    ojs::spool_options options;
    options.directory = (root / "ours").string();
    fs::create_directories(root / "ours");
    const auto opened = ojs::open_spool(options);
    must(opened.has_value(), "open_spool");
    for (int round = 0; round < 15; ++round) {
        const double ours =
            time_jobs(root / "ours", [&](const std::string&) { claim_and_settle(**opened, has_result ? result : ""); });
        const double floor =
            time_jobs(root / "bare", [&](const std::string& name) { bare_job(root / "bare", name, has_result); });
        print(std::to_string(ours) + " " + std::to_string(floor));
    }
    return 0;
}
}  // namespace

const std::vector<role> spool_roles = {{"spool", spool}};
}  // namespace bench
