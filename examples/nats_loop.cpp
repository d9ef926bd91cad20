// A loop of your own on NATS JetStream: a pull consumer, confirmed ACKs, extended leases. Link with -lnats (3.4).
//     nats consumer add work ojs --pull --ack explicit --wait 30s --defaults; build/nats_loop nats://localhost work ojs
// A message "ID MS" takes MS milliseconds, then prints "done ID". "ID fail" comes again each second, max-deliver times.
#include <nats/nats.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "ojs_shutdown.hpp"  // or ojs_shutdown_loop.hpp

namespace {
using namespace std::chrono_literals;

void log(const char* text, natsStatus status) {
    natsStatus last = NATS_OK;  // of this thread, which another call may have left
    const char* why = nats_GetLastError(&last);
    if (last != status || *why == 0) why = natsStatus_GetText(status);
    const ojs::log_record record{ojs::log_level::error, text, {{"error", why}}, "", "nats"};
    ojs::write_log_line(STDERR_FILENO, ojs::format_log_record(record, ojs::log_format::json));
}

struct jetstream {  // thread-safe
    jsSubOptions consumer{};
    natsConnection* connection = nullptr;
    jsCtx* context = nullptr;
    std::atomic<std::chrono::nanoseconds> ack_wait{};  // of the consumer
    std::atomic<ojs::time_point> lease_end{};          // then the server delivers again what is in flight
    bool connect(const char* url, const char* stream, const char* name) {  // does not wait. False: no such URL
        jsSubOptions_Init(&consumer), consumer.Stream = stream, consumer.Consumer = name;
        const auto ignore = [](auto, auto) {};
        natsOptions* options = nullptr;
        natsOptions_Create(&options);
        natsOptions_SetRetryOnFailedConnect(options, true, ignore, nullptr);
        natsOptions_SetMaxReconnect(options, -1);
        natsOptions_SetPingInterval(options, 2000);  // a silent server is left after two
        natsStatus status = natsOptions_SetURL(options, url);
        if (status == NATS_OK) status = natsConnection_Connect(&connection, options);
        if (status != NATS_OK) log("not connected", status);
        jsOptions limits{};
        limits.Wait = 1000;
        return natsConnection_JetStream(&context, connection, &limits) == NATS_OK;
    }
    std::shared_ptr<natsSubscription> subscribe() {  // null: no such consumer, or no response
        natsSubscription* made = nullptr;
        jsConsumerInfo* info = nullptr;
        natsStatus status = js_PullSubscribe(&made, context, nullptr, nullptr, nullptr, &consumer, nullptr);
        const std::shared_ptr<natsSubscription> from(made, natsSubscription_Destroy);
        if (made) status = js_GetConsumerInfo(&info, context, consumer.Stream, consumer.Consumer, nullptr, nullptr);
        if (!info) return log("cannot subscribe", status), nullptr;
        ack_wait = std::chrono::nanoseconds(info->Config->AckWait);
        if (info->Config->AckPolicy != js_AckExplicit || ack_wait.load() < 4s)  // would lose or repeat messages
            throw std::runtime_error("the consumer needs: --ack explicit --wait 4s, or more");
        return jsConsumerInfo_Destroy(info), from;
    }
    // Null: none in 200 ms, or no connection: a request is then kept, and brings a message that nobody waits for.
    std::shared_ptr<natsMsg> take(std::shared_ptr<natsSubscription>& from) {
        if (natsConnection_IsClosed(connection)) throw std::runtime_error("nats: the client has given up");
        if (natsConnection_Status(connection) != NATS_CONN_STATUS_CONNECTED) return from.reset(), nullptr;
        if (!from && !(from = subscribe())) return nullptr;
        natsMsgList list{};
        const natsStatus status = natsSubscription_Fetch(&list, from.get(), 1, 200, nullptr);
        if (status != NATS_OK && status != NATS_TIMEOUT) log("cannot fetch", status), from.reset();
        if (status != NATS_OK) return nullptr;
        lease_end = ojs::steady_clock::now() + ack_wait.load();
        const std::shared_ptr<natsMsg> taken(std::exchange(*list.Msgs, nullptr), natsMsg_Destroy);
        return natsMsgList_Destroy(&list), taken;
    }
    // As natsMsg_AckSync(), for each kind of acknowledgement: waits for its confirmation.
    natsStatus tell(const std::string& id, const char* what) const {
        natsMsg* reply = nullptr;
        const natsStatus status = natsConnection_RequestString(&reply, connection, id.c_str(), what, 1000);
        return natsMsg_Destroy(reply), status;
    }
    std::vector<std::string> renew(const std::vector<std::string>& ids) {  // returns those that are lost
        const ojs::time_point now = ojs::steady_clock::now(), end = lease_end;
        if (std::all_of(ids.begin(), ids.end(), [&](auto& id) { return tell(id, "+WPI") == NATS_OK; }))
            lease_end = now + ack_wait.load();
        return now > end ? ids : std::vector<std::string>();
    }
};

// How to settle the message; null: it is not this consumer's any more.
const char* process(const std::string& body, const ojs::cancel_token& interrupt) {
    const std::string id = body.substr(0, body.find(' ')), rest = body.substr(id.size());
    if (rest == " fail") return R"(-NAK {"delay": 1000000000})";
    const bool is_done = interrupt.sleep_for(1ms * (std::atoi(rest.c_str()) % 60001));
    if (!is_done) return interrupt.reason() == ojs::cancel_reason::revoked ? nullptr : "-NAK";
    return ojs::write_log_line(STDOUT_FILENO, "done " + id), "+ACK";
}

void consume(ojs::consumer& consumer, jetstream& nats) {
    std::shared_ptr<natsSubscription> from;
    while (consumer.next([&] { from.reset(); })) {
        const auto taken = nats.take(from);
        if (!from) static_cast<void>(consumer.intake_token().sleep_for(1s));  // no connection, or no consumer
        if (!taken) continue;
        const std::string id = natsMsg_GetReply(taken.get());
        const ojs::item item = consumer.begin(id);
        const char* const how = process(natsMsg_GetData(taken.get()), item.token());
        natsStatus status = how ? nats.tell(id, how) : NATS_OK;
        for (int i = 0; i < 10 && status != NATS_OK && item.token().sleep_for(1s); ++i) status = nats.tell(id, how);
        if (status != NATS_OK) log("not settled", status);
    }
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    jetstream nats;
    if (argc != 4 || !nats.connect(argv[1], argv[2], argv[3]))
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: nats_loop URL STREAM CONSUMER"});
    loop.add_consumers(0, [&](ojs::consumer& consumer) { consume(consumer, nats); });
    loop.on_renew(1s, [&](const auto& ids) { return nats.renew(ids); });
    return loop.run();
}
