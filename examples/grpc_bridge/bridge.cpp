// A coordinator for gRPC clients: each call is forwarded as JSON, and its response or error returned. Copy it together
// with examples/proto/lifecycle.proto; `make grpc-bridge` builds it if libgrpc++ is installed.
//
//     grpc_bridge --listen unix:/run/app/kv-1.grpc --to unix:/run/app/kv-1.sock
//
// The bridge drains by the library: on SIGTERM it accepts no more calls, and finishes those in flight.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "ojs_coordinator.hpp"
#include "service.hpp"

namespace {
const char usage[] =
    R"(usage: grpc_bridge --to ADDRESS [--listen ADDRESS] [--limit TIME]
Serves prism.interfaces.ProcessLifecycleInterface over gRPC, without TLS, and passes each call on to a coordinator.
  --to ADDRESS      the coordinator: unix:/PATH or 127.0.0.1:PORT
  --listen ADDRESS  unix:/PATH or 127.0.0.1:PORT (127.0.0.1:0: a free port). Who can open it can end the process behind
                    it: of a socket, keep the folder to yourself; of a port, that is every user of the machine
  --limit TIME      the longest a call may take, whatever its deadline (5s)
Status: 0 drained, 1 not drained in time or no socket, 64 wrong options.
)";

struct settings {
    std::string to;
    std::string listen = "127.0.0.1:0";
    std::chrono::milliseconds limit{5000};
};

ojs::error wrong(const std::string& what) { return {ojs::errc::invalid_argument, 0, what + "; see --help"}; }

ojs::result<settings> read_arguments(int argc, char** argv) {
    settings out;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) return wrong(name + " needs a value");
        const std::string value = argv[i + 1];
        if (name == "--to") {
            out.to = value;
        } else if (name == "--listen") {
            out.listen = value;
        } else if (name == "--limit") {
            const ojs::result<std::chrono::milliseconds> read = ojs::parse_duration(value);
            if (!read) return read.error();
            out.limit = *read;
        } else {
            return wrong("unknown option " + name);
        }
    }
    if (out.to.empty()) return wrong("--to is needed");
    return out;
}

void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

int serve(const settings& how, ojs::lifecycle& life) {
    const bool is_path = how.to.compare(0, 5, "unix:") == 0;
    ojs::result<ojs::http_client> to = ojs::http_client::create(is_path ? how.to : "http://" + how.to);
    if (!to) return ojs::report_startup_error(to.error());
    // If a launcher started the bridge, this process reports to it like any other child.
    const auto options = ojs::coordinator_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    auto coordinator = ojs::shutdown_coordinator::start(*options, life);
    if (!coordinator) return ojs::report_startup_error(coordinator.error());

    bridge service(std::move(*to), how.limit);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(how.listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (server == nullptr || port == 0) {
        std::fprintf(stderr, "grpc_bridge: cannot listen on %s\n", how.listen.c_str());
        return 1;
    }
    if (how.listen.compare(0, 5, "unix:") == 0) {
        say("listening on " + how.listen);
    } else {
        say("listening on port " + std::to_string(port));
    }
    coordinator->report_ready();
    const ojs::result<void> drained = coordinator->run([&](const ojs::cancel_token& token) {
        service.close();
        say("draining");
        return service.drain(token);
    });
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));  // writes the last responses
    say(drained ? "drained" : drained.error().text);
    return drained ? 0 : 1;
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    const ojs::result<settings> how = read_arguments(argc, argv);
    if (!how) return ojs::report_startup_error(how.error());
    ojs::lifecycle life;
    const ojs::result<ojs::signals> signals = ojs::signals::install(life);
    if (!signals) return ojs::report_startup_error(signals.error());
    return serve(*how, life);
}
