// Declares, fills and counts RabbitMQ's queues. It does not use the library under test.
//     amqp_tool URL declare QUEUE classic|quorum    durable
//     amqp_tool URL publish QUEUE                   each line of stdin; message-id: its first word
//     amqp_tool URL count QUEUE                     messages that are ready
#include <cstdio>
#include <iostream>

#include "plain_amqp.hpp"

int main(int argc, char** argv) try {
    const std::string command = argc > 3 ? argv[2] : "";
    if (command == "declare" && argc == 5) {
        broker(argv[1]).declare(argv[3], argv[4]);
    } else if (command == "publish" && argc == 4) {
        broker to(argv[1]);
        int sent = 0;
        for (std::string line; std::getline(std::cin, line);) {
            to.send(argv[3], {line.substr(0, line.find(' ')), line, "", "", 0, 0, {}});
            if (++sent % 1000 == 0) to.confirm();
        }
        to.confirm();
    } else if (command == "count" && argc == 4) {
        std::printf("%d\n", broker(argv[1]).count(argv[3]));
    } else {
        return std::fprintf(stderr,
                            "usage: amqp_tool URL declare QUEUE classic|quorum\n"
                            "       amqp_tool URL publish|count QUEUE\n"),
               64;
    }
} catch (const std::exception& why) {
    return std::fprintf(stderr, "amqp_tool: %s\n", why.what()), 1;
}
