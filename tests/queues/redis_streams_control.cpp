// The control of chaos.py: what hiredis' users write. XREADGROUP and XACK, without XAUTOCLAIM and with the default
// action of signals; with `list`, BLPOP.
//
//     redis_streams_control HOST:PORT KEY [list]
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

static void process(const std::string& body) {
    const std::size_t blank = body.find(' ');
    const long ms = blank == std::string::npos ? 0 : std::strtol(body.c_str() + blank, nullptr, 10);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    const std::string line = "done " + body.substr(0, blank) + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

int main(int argc, char** argv) {
    if (argc < 3) return 64;
    const std::string address = argv[1], consumer = "c" + std::to_string(getpid());
    const char* const key = argv[2];
    const bool is_list = argc > 3 && argv[3] == std::string("list");
    const std::size_t colon = address.find(':');
    redisContext* const to =
        redisConnect(address.substr(0, colon).c_str(), std::atoi(address.c_str() + colon + 1));
    if (to == nullptr || to->err != 0) return 1;
    freeReplyObject(redisCommand(to, "XGROUP CREATE %s ojs 0 MKSTREAM", key));
    for (;;) {
        auto* const got = static_cast<redisReply*>(
            is_list ? redisCommand(to, "BLPOP %s 0", key)
                    : redisCommand(to, "XREADGROUP GROUP ojs %s COUNT 10 BLOCK 0 STREAMS %s >",
                                   consumer.c_str(), key));
        if (got == nullptr || got->type != REDIS_REPLY_ARRAY) return 1;
        if (is_list) {
            process(got->element[1]->str);
            freeReplyObject(got);
            continue;
        }
        const redisReply& entries = *got->element[0]->element[1];
        for (std::size_t i = 0; i < entries.elements; ++i) {
            const redisReply& fields = *entries.element[i]->element[1];  // id, ID, body, BODY
            process(fields.element[3]->str);
            freeReplyObject(redisCommand(to, "XACK %s ojs %s", key, entries.element[i]->element[0]->str));
        }
        freeReplyObject(got);
    }
}
