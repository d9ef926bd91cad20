// operations: the handlers of the routes. Each throws a refusal for a request that it rejects.
#pragma once
#include <string>

#include "backend.hpp"

namespace dev_backend {

// job_operations.cpp
ojs::http_response push(backend& on, const incoming& in);
ojs::http_response push_batch(backend& on, const incoming& in);
ojs::http_response info(backend& on, const incoming& in);
ojs::http_response cancel(backend& on, const incoming& in);
ojs::http_response activate(backend& on, const incoming& in);

// worker_operations.cpp
ojs::http_response fetch(backend& on, const incoming& in);
ojs::http_response ack(backend& on, const incoming& in);
ojs::http_response nack(backend& on, const incoming& in);
ojs::http_response heartbeat(backend& on, const incoming& in);

// checkpoint_operations.cpp
ojs::http_response save_checkpoint(backend& on, const incoming& in);
ojs::http_response load_checkpoint(backend& on, const incoming& in);
ojs::http_response drop_checkpoint(backend& on, const incoming& in);

// list_operations.cpp
ojs::http_response list_jobs(backend& on, const incoming& in);
ojs::http_response list_events(backend& on, const incoming& in);
ojs::http_response list_dead_letters(backend& on, const incoming& in);
ojs::http_response retry_dead_letter(backend& on, const incoming& in);
ojs::http_response remove_dead_letter(backend& on, const incoming& in);

// queue_operations.cpp
ojs::http_response list_queues(backend& on, const incoming& in);
ojs::http_response pause_queue(backend& on, const incoming& in);
ojs::http_response resume_queue(backend& on, const incoming& in);
// Takes the connection over from the server.
ojs::http_response stream_queue_events(backend& on, const incoming& in);

// admin_operations.cpp
ojs::http_response list_workers(backend& on, const incoming& in);
ojs::http_response show_worker(backend& on, const incoming& in);
ojs::http_response quiet_worker(backend& on, const incoming& in);
ojs::http_response worker_health(backend& on, const incoming& in);

// dev_operations.cpp
ojs::http_response health(backend& on, const incoming& in);
ojs::http_response manifest(backend& on, const incoming& in);
ojs::http_response readiness(backend& on, const incoming& in);
ojs::http_response show_summary(backend& on, const incoming& in);
ojs::http_response set_directive(backend& on, const incoming& in);
ojs::http_response set_faults(backend& on, const incoming& in);
ojs::http_response set_delay(backend& on, const incoming& in);
ojs::http_response reset(backend& on, const incoming& in);
std::string summary(backend& of);

}  // namespace dev_backend
