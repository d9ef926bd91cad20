// A coordinator for clients that speak gRPC: each call is passed on as JSON, and its answer or error comes back. To be
// copied together with lifecycle.proto; `make grpc-bridge` builds it where libgrpc++ is installed.
//
//     grpc_bridge --listen unix:/run/app/kv-1.grpc --to unix:/run/app/kv-1.sock
//
// The bridge drains itself by the library: on SIGTERM no call is taken any more, and those under way are finished.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "lifecycle.grpc.pb.h"
#include "ojs_coordinator.hpp"

namespace {

namespace pb = prism::interfaces;
namespace json = google::protobuf::util;
using google::protobuf::Message;
using grpc::Status;
using grpc::StatusCode;

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

ojs::error wrong(const std::string& what) {
    return {ojs::errc::invalid_argument, 0, what + "; see --help"};
}

ojs::result<settings> read_arguments(int argc, char** argv) {
    settings out;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) return wrong(name + " wants a value");
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

// Connect's codes are those of gRPC, in small letters.
StatusCode code_named(const std::string& name) {
    static const char* const names[] = {
        "ok",        "canceled",       "unknown",           "invalid_argument",   "deadline_exceeded",
        "not_found", "already_exists", "permission_denied", "resource_exhausted", "failed_precondition",
        "aborted",   "out_of_range",   "unimplemented",     "internal",           "unavailable",
        "data_loss", "unauthenticated"};
    for (int i = 1; i <= StatusCode::UNAUTHENTICATED; ++i) {
        if (name == names[i]) return static_cast<StatusCode>(i);
    }
    return StatusCode::UNKNOWN;
}

Status refused(const ojs::http_response& answer) {
    google::protobuf::Struct body;
    if (!json::JsonStringToMessage(answer.body, &body).ok() || body.fields().count("code") == 0) {
        return {answer.status >= 500 ? StatusCode::UNAVAILABLE : StatusCode::UNKNOWN,
                "the coordinator answered with status " + std::to_string(answer.status)};
    }
    return {code_named(body.fields().at("code").string_value()),
            (*body.mutable_fields())["message"].string_value()};
}

Status failed(const ojs::error& failure) {
    const std::string text = "no answer of the coordinator: " + failure.text;
    if (failure.code == ojs::errc::timed_out) return {StatusCode::DEADLINE_EXCEEDED, text};
    if (failure.code == ojs::errc::bad_answer) return {StatusCode::INTERNAL, text};
    return {StatusCode::UNAVAILABLE, text};
}

class bridge final : public pb::ProcessLifecycleInterface::Service {
  public:
    bridge(ojs::http_client to, std::chrono::milliseconds limit) : to_(std::move(to)), limit_(limit) {}

    // No call is taken after this; an error where some had to be cut.
    ojs::result<void> drain(const ojs::cancel_token& token) {
        gate_.close();
        say("draining");
        const ojs::cancel_registration cuts =
            token.on_cancel([this] { cut_.cancel(ojs::cancel_reason::cancelled); });
        // Each call has a limit, so that this is but a guard.
        const std::uint64_t left =
            gate_.wait_until(ojs::steady_clock::now() + limit_ + std::chrono::seconds(1));
        if (left == 0 && !token.cancelled()) return {};
        return ojs::error{ojs::errc::timed_out, 0, "calls were cut"};
    }

  private:
    Status pass_on(const char* method, const grpc::ServerContext& context, const Message& asked,
                   Message& answer) {
        const ojs::drain_barrier::ticket inside = gate_.enter();
        if (!inside) return {StatusCode::UNAVAILABLE, "the bridge shuts down"};
        ojs::http_request request;
        request.method = "POST";
        request.target = std::string("/prism.interfaces.ProcessLifecycleInterface/") + method;
        request.headers = {{"Content-Type", "application/json"}, {"Connect-Protocol-Version", "1"}};
        if (!json::MessageToJsonString(asked, &request.body).ok()) {
            return {StatusCode::INVALID_ARGUMENT, "the request cannot be written as JSON"};
        }
        ojs::http_call call;
        call.deadline = deadline_of(context);
        call.policy = ojs::resend::always;  // a repeated Shutdown changes nothing
        const ojs::result<int> interrupt = cut_.token().fd();
        if (interrupt) call.interrupt_fd = *interrupt;
        const ojs::result<ojs::http_response> said = to_.send(request, call);
        if (!said) return failed(said.error());
        if (said->status != 200) return refused(*said);
        // Unknown fields are refused: protobuf ignores unknown states with them, and they would become RUNNING.
        if (json::JsonStringToMessage(said->body, &answer).ok()) return Status::OK;
        return {StatusCode::INTERNAL, "the coordinator's answer is not that of " + std::string(method)};
    }
    ojs::time_point deadline_of(const grpc::ServerContext& context) const {
        const auto left = context.deadline() - std::chrono::system_clock::now();
        return ojs::steady_clock::now() + (left < limit_ ? std::chrono::nanoseconds(left) : limit_);
    }

    Status Shutdown(grpc::ServerContext* context, const pb::ShutdownRequest* asked,
                    pb::ShutdownAck* answer) override {
        return pass_on("Shutdown", *context, *asked, *answer);
    }
    Status GetShutdownStatus(grpc::ServerContext* context, const pb::ShutdownStatusRequest* asked,
                             pb::ShutdownStatus* answer) override {
        return pass_on("GetShutdownStatus", *context, *asked, *answer);
    }
    Status GetReadinessStatus(grpc::ServerContext* context, const pb::ReadinessRequest* asked,
                              pb::ReadinessResponse* answer) override {
        return pass_on("GetReadinessStatus", *context, *asked, *answer);
    }
    Status NotifyReady(grpc::ServerContext* context, const pb::ReadyNotification* asked,
                       pb::ReadyAck* answer) override {
        return pass_on("NotifyReady", *context, *asked, *answer);
    }
    Status NotifyShutdownComplete(grpc::ServerContext* context, const pb::ShutdownComplete* asked,
                                  pb::ShutdownCompleteAck* answer) override {
        return pass_on("NotifyShutdownComplete", *context, *asked, *answer);
    }

    ojs::http_client to_;
    const std::chrono::milliseconds limit_;
    ojs::drain_barrier gate_;
    ojs::cancel_source cut_;
};

int serve(const settings& how, ojs::lifecycle& life) {
    const bool is_path = how.to.compare(0, 5, "unix:") == 0;
    ojs::result<ojs::http_client> to = ojs::http_client::create(is_path ? how.to : "http://" + how.to);
    if (!to) return ojs::report_usage(to.error());
    // Where a launcher started the bridge, it is told of this process as of any other.
    const auto options = ojs::coordinator_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    auto coordinator = ojs::shutdown_coordinator::start(*options, life);
    if (!coordinator) return ojs::report_usage(coordinator.error());

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
    coordinator->ready();
    const ojs::result<void> drained =
        coordinator->run([&](const ojs::cancel_token& token) { return service.drain(token); });
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));  // writes the last answers
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
    if (!how) return ojs::report_usage(how.error());
    ojs::lifecycle life;
    const ojs::result<ojs::signals> signals = ojs::signals::install(life);
    if (!signals) return ojs::report_usage(signals.error());
    return serve(*how, life);
}
