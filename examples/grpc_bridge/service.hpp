// The gRPC service of the bridge: forwards each call to a coordinator as JSON, and returns its response or error.
#pragma once

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "lifecycle.grpc.pb.h"
#include "ojs_coordinator.hpp"

namespace pb = prism::interfaces;
namespace json = google::protobuf::util;
using google::protobuf::Message;
using grpc::Status;
using grpc::StatusCode;

// Connect's codes are those of gRPC, in lower case.
inline StatusCode code_named(const std::string& name) {
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

inline Status refused(const ojs::http_response& answer) {
    google::protobuf::Struct body;
    if (!json::JsonStringToMessage(answer.body, &body).ok() || body.fields().count("code") == 0)
        return {answer.status >= 500 ? StatusCode::UNAVAILABLE : StatusCode::UNKNOWN,
                "the coordinator answered with status " + std::to_string(answer.status)};
    return {code_named(body.fields().at("code").string_value()), (*body.mutable_fields())["message"].string_value()};
}

inline Status failed(const ojs::error& failure) {
    const std::string text = "no answer of the coordinator: " + failure.text;
    if (failure.code == ojs::errc::timed_out) return {StatusCode::DEADLINE_EXCEEDED, text};
    if (failure.code == ojs::errc::bad_response) return {StatusCode::INTERNAL, text};
    return {StatusCode::UNAVAILABLE, text};
}

class bridge final : public pb::ProcessLifecycleInterface::Service {
  public:
    bridge(ojs::http_client to, std::chrono::milliseconds limit) : to_(std::move(to)), limit_(limit) {}

    // No call is accepted after this.
    void close() { gate_.close(); }
    // Returns an error if calls were cut.
    ojs::result<void> drain(const ojs::cancel_token& token) {
        const ojs::cancel_registration cuts = token.on_cancel([this] { cut_.cancel(ojs::cancel_reason::cancelled); });
        // Each call has its own timeout; this is a safeguard.
        const std::uint64_t left = gate_.wait_until(ojs::steady_clock::now() + limit_ + std::chrono::seconds(1));
        if (left == 0 && !token.cancelled()) return {};
        return ojs::error{ojs::errc::timed_out, 0, "calls were cut"};
    }

  private:
    Status pass_on(const char* method, const grpc::ServerContext& context, const Message& asked, Message& answer) {
        const ojs::drain_barrier::ticket inside = gate_.enter();
        if (!inside) return {StatusCode::UNAVAILABLE, "the bridge shuts down"};
        ojs::http_request request;
        request.method = "POST";
        request.target = std::string("/prism.interfaces.ProcessLifecycleInterface/") + method;
        request.headers = {{"Content-Type", "application/json"}, {"Connect-Protocol-Version", "1"}};
        if (!json::MessageToJsonString(asked, &request.body).ok())
            return {StatusCode::INVALID_ARGUMENT, "the request cannot be written as JSON"};
        ojs::http_call call;
        call.deadline = deadline_of(context);
        call.is_repeatable = true;  // a repeated Shutdown changes nothing
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

    Status Shutdown(grpc::ServerContext* context, const pb::ShutdownRequest* asked, pb::ShutdownAck* answer) override {
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
