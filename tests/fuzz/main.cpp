// All fuzz targets in one program, so that the library is compiled once; the name it is started by picks one of them.
#include "targets/address.hpp"
#include "targets/admin.hpp"
#include "targets/amqp.hpp"
#include "targets/events.hpp"
#include "targets/host.hpp"
#include "targets/jobs.hpp"
#include "targets/launcher.hpp"
#include "targets/message.hpp"
#include "targets/redis.hpp"
#include "targets/settings.hpp"
#include "targets/spool.hpp"
#include "targets/state_file.hpp"

// The example with its own main renamed, for its reader of configurations.
#define main controller_main
#include "../../tools/controller.cpp"
#undef main

namespace {
void controller(fuzz::input in) { fuzz::controller(in, read_config, check); }
constexpr struct {
    const char* name;
    void (*run)(fuzz::input);
} targets[] = {
    {"request", fuzz::request},         {"answer", fuzz::answer},
    {"address", fuzz::address},         {"jobs", fuzz::jobs},
    {"heartbeat", fuzz::heartbeat},     {"rpc_message", fuzz::rpc_message},
    {"events", fuzz::events},           {"spool", fuzz::spool},
    {"mode_file", fuzz::mode_file},     {"container", fuzz::container},
    {"state_file", fuzz::state_file},   {"admin", fuzz::admin},
    {"duration", fuzz::duration},       {"amqp", fuzz::amqp},
    {"redis_reply", fuzz::redis_reply}, {"controller", controller},
};
void (*chosen)(fuzz::input) = nullptr;
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
    const std::string name = std::filesystem::path(**arguments).filename().string();
    for (const auto& each : targets) {
        if (name == each.name) chosen = each.run;
    }
    if (chosen != nullptr) return 0;
    std::fprintf(stderr, "there is no target %s\n", name.c_str());
    std::exit(64);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    chosen({data, size});
    return 0;
}
