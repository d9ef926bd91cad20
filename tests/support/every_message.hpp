// Every message there is, in the order of lifecycle.proto and admin.proto. Behind one interface, so that what is asked of
// all of them is compiled once.
#pragma once
#include <memory>
#include <ojs_launcher.hpp>
#include <string>
#include <vector>

namespace test {
class any_message {
  public:
    virtual ~any_message() = default;
    // Another of the type, with all fields unset.
    virtual std::unique_ptr<any_message> fresh() const = 0;
    virtual ojs::detail::message_view view() = 0;
    virtual std::string write() const = 0;
    // What was here stays where this fails.
    virtual ojs::result<void> read(const std::string& json) = 0;
};

template <class Message>
class message_of_type final : public any_message {
  public:
    std::unique_ptr<any_message> fresh() const override { return std::make_unique<message_of_type>(); }
    ojs::detail::message_view view() override { return ojs::detail::view_of(message_); }
    std::string write() const override { return ojs::write_message(message_); }
    ojs::result<void> read(const std::string& json) override {
        const ojs::result<Message> read = ojs::read_message<Message>(json);
        if (!read) return read.error();
        message_ = *read;
        return {};
    }

  private:
    Message message_;
};

template <class... Messages>
std::vector<std::unique_ptr<any_message>> messages_of_types() {
    std::vector<std::unique_ptr<any_message>> out;
    (out.push_back(std::make_unique<message_of_type<Messages>>()), ...);
    return out;
}

inline std::vector<std::unique_ptr<any_message>> every_message() {
    return messages_of_types<
        ojs::shutdown_request, ojs::shutdown_ack, ojs::shutdown_status_request, ojs::shutdown_status,
        ojs::shutdown_metrics, ojs::shutdown_complete, ojs::shutdown_complete_ack, ojs::readiness_request,
        ojs::readiness_response, ojs::readiness_checks, ojs::ready_notification, ojs::ready_ack,
        ojs::shutdown_process_request, ojs::shutdown_process_response, ojs::process_status_request, ojs::process_status,
        ojs::shutdown_group_request, ojs::shutdown_group_response, ojs::group_status_request, ojs::rollout_status,
        ojs::group_status, ojs::rollout_request, ojs::rollout_response, ojs::cancel_rollout_request,
        ojs::cancel_rollout_response, ojs::list_groups_request, ojs::list_groups_response>();
}
}  // namespace test
