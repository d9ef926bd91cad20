// A gRPC server that stops without failing a call: each call is an item of an ojs::loop. No generated code:
// the service is generic, and messages are text.
//
//     build/grpc_drain [ADDRESS [LAME_DUCK]]        127.0.0.1:0 and 1s by default
//
// /demo/Work responds after the milliseconds in its request, /demo/Watch sends a message each 50 ms forever,
// and /demo/Hang never responds, whatever happens to it.
//
// SIGTERM: the health service says NOT_SERVING, and streams end with UNAVAILABLE; after LAME_DUCK new calls
// are refused, and the process ends after the last call. Again, or when the grace period ends: calls end with
// UNAVAILABLE. SIGTSTP: NOT_SERVING until SIGCONT. Exit status 0; 75: a call did not end.
#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ojs_shutdown.hpp"

namespace {
using namespace std::chrono_literals;

std::string text_of(const grpc::ByteBuffer& bytes) {
    grpc::Slice slice;
    if (!bytes.TrySingleSlice(&slice).ok()) return "";
    return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// One call, on threads of gRPC. None may block, or call Shutdown().
class call : public grpc::ServerGenericBidiReactor {
  public:
    call(ojs::loop& loop, grpc::GenericCallbackServerContext& context)
        : loop_(loop), context_(context), method_(context.method()), item_(loop.begin(method_)) {
        StartRead(&message_);
    }
    void OnReadDone(bool ok) override {
        if (method_ == "/demo/Hang") return;
        if (!ok) return Finish({grpc::StatusCode::INVALID_ARGUMENT, "no request"});
        if (method_ == "/demo/Work") return wait(std::chrono::milliseconds(std::atoi(text_of(message_).c_str())));
        if (method_ == "/demo/Watch") return StartWrite(&message_);
        Finish({grpc::StatusCode::UNIMPLEMENTED, method_});
    }
    void OnWriteDone(bool) override { wait(50ms); }
    void OnCancel() override { alarm_.Cancel(); }  // by the client
    void OnDone() override { delete this; }

  private:
    void wait(std::chrono::milliseconds time) {
        alarm_.Set(std::chrono::system_clock::now() + time, [this](bool elapsed) { go_on(elapsed); });
        if (item_.token().cancelled() || context_.IsCancelled()) alarm_.Cancel();  // before it was set
    }
    void go_on(bool elapsed) {
        const bool is_stream = method_ == "/demo/Watch";
        if (!elapsed || (is_stream && loop_.phase() >= ojs::phase::draining))
            return Finish({grpc::StatusCode::UNAVAILABLE, "the server stops"});
        if (is_stream) return StartWrite(&message_);
        StartWriteAndFinish(&message_, {}, grpc::Status::OK);
    }

    ojs::loop& loop_;
    grpc::GenericCallbackServerContext& context_;
    const std::string method_;
    ojs::item item_;
    grpc::ByteBuffer message_;
    grpc::Alarm alarm_;
    ojs::cancel_registration interrupt_ = item_.token().on_cancel([this] { alarm_.Cancel(); });
};

class service : public grpc::CallbackGenericService {
  public:
    explicit service(ojs::loop& loop) : loop_(loop) {}
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
        return new call(loop_, *context);
    }

  private:
    ojs::loop& loop_;
};

// The thread that stops the server. If a call never ends, neither does Shutdown(), even with a deadline
// (grpc#39114): then the loop ends the process.
void serve(ojs::consumer& consumer, grpc::Server& server, std::chrono::milliseconds lame_duck) {
    grpc::HealthCheckServiceInterface& health = *server.GetHealthCheckService();
    while (consumer.next()) {
        health.SetServingStatus(true);
        while (consumer.intake_token().sleep_for(24h)) {
        }
        health.SetServingStatus(false);  // quiet, or the stop
    }
    const ojs::item item = consumer.begin("lame duck");
    (void)item.token().sleep_for(lame_duck);
    server.Shutdown();
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    const auto lame_duck = ojs::parse_duration(argc > 2 ? argv[2] : "1s");
    if (argc > 3 || !lame_duck)
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: grpc_drain [ADDRESS [LAME_DUCK]]"});
    grpc::EnableDefaultHealthCheckService(true);
    service handlers(loop);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(argc > 1 ? argv[1] : "127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&handlers);
    const auto server = builder.BuildAndStart();
    if (!server) return 1;  // gRPC has logged why
    std::fprintf(stderr, "listening on 127.0.0.1:%d\n", port);
    loop.add_consumers(1, [&](ojs::consumer& consumer) { serve(consumer, *server, *lame_duck); });
    return loop.run();
}
