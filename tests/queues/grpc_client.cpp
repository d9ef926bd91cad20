// Calls examples/grpc_drain.cpp without generated code.
//     grpc_client ADDRESS call METHOD [TEXT]    prints the status code, and the response in hex
//     grpc_client ADDRESS load CALLERS MS       each caller repeats /demo/Work until it is refused; prints
//                                               "ok N refused N failed N", and each other error
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace {
grpc::ByteBuffer bytes_of(const std::string& text) {
    const grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
}

std::string hex_of(const grpc::ByteBuffer& bytes) {
    grpc::Slice slice;
    std::string out;
    if (!bytes.DumpToSingleSlice(&slice).ok()) return out;
    for (const unsigned char byte : slice) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", byte);
        out += digits;
    }
    return out;
}

void print(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

grpc::Status call(grpc::GenericStub& stub, const std::string& method, const std::string& text, std::string& response) {
    grpc::ClientContext context;
    grpc::ByteBuffer sent = bytes_of(text), received;
    std::promise<grpc::Status> end;
    stub.UnaryCall(&context, method, {}, &sent, &received, [&](grpc::Status status) { end.set_value(status); });
    const grpc::Status status = end.get_future().get();
    if (status.ok()) response = hex_of(received);
    return status;
}

int load(grpc::GenericStub& stub, int callers, const std::string& time) {
    std::atomic<int> ok{0}, refused{0}, failed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i)
        threads.emplace_back([&] {
            for (std::string response;;) {
                const grpc::Status status = call(stub, "/demo/Work", time, response);
                if (status.ok()) {
                    if (++ok == callers) print("loaded");
                    continue;
                }
                const std::string& why = status.error_message();
                const bool was_sent = why.find("refused") == why.npos && why.find("failed to connect") == why.npos;
                ++(was_sent ? failed : refused);
                if (was_sent) print(std::to_string(status.error_code()) + " " + why);
                return;
            }
        });
    for (std::thread& each : threads) each.join();
    print("ok " + std::to_string(ok) + " refused " + std::to_string(refused) + " failed " + std::to_string(failed));
    return 0;
}
}  // namespace

int main(int argc, char** argv) {
    const std::string command = argc > 2 ? argv[2] : "";
    if (command.empty()) return 64;
    grpc::GenericStub stub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
    if (command == "load" && argc == 5) return load(stub, std::atoi(argv[3]), argv[4]);
    if (command != "call" || argc < 4) return 64;
    std::string response;
    const grpc::Status status = call(stub, argv[3], argc > 4 ? argv[4] : "", response);
    print(std::to_string(status.error_code()) + " " + response + status.error_message());
    return 0;
}
