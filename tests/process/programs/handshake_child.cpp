// A child of a launcher to which something happens at one point of the handshake, exactly there:
// handshake_child POINT ACTION [FIFO]
//   POINT   spawned    before it listens
//           listening  before it is ready
//           ready
//           requested  a Shutdown has come, and nothing was done for it yet
//           draining
//           complete   after its drain, before its exit
//   ACTION  kill       SIGKILL
//           stop       SIGSTOP; a SIGTERM ends it, wherever it is by then
//           wait       until somebody opens FIFO for writing
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "ojs_coordinator.hpp"

namespace {

std::string point;
std::string action;
std::string fifo;

void reach(const char* where) {
    if (point != where) return;
    if (action == "kill") ::raise(SIGKILL);
    if (action == "stop") ::raise(SIGSTOP);
    if (action != "wait") return;
    while (::open(fifo.c_str(), O_RDONLY) < 0 && errno == EINTR) {
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 64;
    point = argv[1];
    action = argv[2];
    if (argc > 3) fifo = argv[3];
    reach("spawned");
    ojs::lifecycle life;
    ojs::result<ojs::signals> signals = ojs::signals();
    if (action != "stop") signals = ojs::signals::install(life);
    auto options = ojs::coordinator_options::from_environment();
    if (!signals || !options) return 64;
    auto coordinator = ojs::shutdown_coordinator::start(*options, life);
    if (!coordinator) return 1;
    reach("listening");
    coordinator->ready();
    reach("ready");
    while (life.state().phase < ojs::phase::draining)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    reach("requested");
    const ojs::result<void> drained = coordinator->run([](const ojs::cancel_token&) {
        reach("draining");
        return ojs::result<void>();
    });
    reach("complete");
    return drained ? 0 : 1;
}
