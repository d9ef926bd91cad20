// dialect: where backends and documents disagree, each choice as a field, with presets.
#pragma once

#include <string>

namespace ojs {
inline namespace v1 {

struct dialect {
    std::string name = "graceful_shutdown";
    // error.type and error.code of a job that the stop interrupted. [GS-005, GS 7.2]
    std::string interrupted_error = "ShutdownError";
    std::string long_running_error = "ShutdownTimeout";  // for handlers registered as long_running
    // An interrupted job is handed back without using up one of its attempts, where the backend can.
    bool requeue_interrupted = true;
    // `state` of the beats between leaving `running` and the last one, and of the last one. [GS 5.1, 5.3]
    std::string drain_state = "quiet";
    std::string last_state = "terminate";

    static dialect graceful_shutdown() { return {}; }  // the specification's text; the default
    static dialect website() {                         // the project's web page
        dialect out;
        out.name = "website";
        out.interrupted_error = out.long_running_error = "shutdown";
        out.requeue_interrupted = false;
        out.last_state = "terminated";
        return out;
    }
};

}  // namespace v1
}  // namespace ojs
