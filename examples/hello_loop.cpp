// A first program: a loop that stops in order. It needs no queue, and no other library.
#include "ojs_shutdown.hpp"

void consume(ojs::consumer& consumer) {
    for (int n = 1; consumer.next(); ++n) {                                 // false: the loop stops
        const ojs::item item = consumer.begin("job-" + std::to_string(n));  // in flight until the end of its scope
        const bool done = item.token().sleep_for(std::chrono::seconds(3));  // the work; false: it was interrupted
        ojs::write_log_line(1, done ? "done" : "interrupted: requeue it");
    }
}

int main() {
    ojs::loop loop;
    loop.add_consumers(1, consume);
    return loop.run();
}
