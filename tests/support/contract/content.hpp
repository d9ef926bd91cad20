// Cases: the content of jobs.
#pragma once

#include "claims.hpp"

namespace transport_contract {
// A JSON text of about `size` bytes, with many members and one long string.
inline std::string large(std::size_t size) {
    std::string out = "[{\"rows\":[";
    for (int row = 0; out.size() < size / 2; ++row)
        out += (row == 0 ? "" : ",") + ("{\"n\":" + std::to_string(row) + ",\"s\":\"\\u00e4\\n\\\"\"}");
    out += "]},\"";
    while (out.size() + 2 < size) out += 'x';
    return out + "\"]";
}

inline void odd_args(trial& t) {
    test_worker worker(t);
    texts all = {
        "[]",
        "[null,true,false,\"\",{},[]]",
        "[\"gr\u00fc\u00df \u20ac \U0001f600 \\u00fc \\ud83d\\ude00 \\\" \\\\ \\/ \\b\\f\\n\\r\\t\\u001f\\u007f\"]",
        "[{\"\":1,\" \":2,\"\u00fc\":{\"a.b\":[3]},\"$x\":\"%s %n ' \\\" ; -- ?\"}]",
        "[9007199254740993,-12345678901234567890123456789,0.1234567890123456789012345,1.5e300,-2.25e-30,0]",
        "[100000000000000000000000000000000000000000000000001,3.14159265358979323846264338327950288]",
        std::string(41, '[') + "1" + std::string(41, ']'),
        large(t.can.largest_args),
    };
    if (t.can.holds_nul) all.push_back("[\"a\\u0000b\",{\"\\u0000\":\"\\u0000\"}]");
    for (const std::string& args : all) {
        const std::string id = t.push(args);
        const ojs::job first = worker.claim_one(id);
        check_args(t, first, args);
        worker.fail(id, true);  // and once more, from wherever it was kept
        check_args(t, worker.claim_one(), args);
        worker.ack(id);
        t.state_is(id, job_state::completed);
    }
}

inline void check_named(trial& t, test_worker& worker, const new_job& what) {
    const std::string id = t.on.push(what);
    if (!what.id.empty()) t.equal(id, what.id, "the id that was pushed");
    for (const int attempt : {1, 2}) {
        const ojs::job got = worker.claim_one(id);
        t.equal(got.type, what.type, "the type");
        t.equal(got.attempt, attempt, "the attempt");
        if (attempt == 1) worker.fail(id, true);
    }
    worker.ack(id);
    check_gone(t, worker.try_ack(id), "the second ACK");
    t.state_is(id, job_state::completed);
}

inline void odd_names(trial& t) {
    test_worker worker(t);
    new_job what;
    what.queue = t.queue;
    texts types = {"t", "contract.a.b_c.d2"};
    const texts odd = {"Gr\u00fc\u00dfe \u20ac \U0001f600", "a/b?c=d&e#f%41+g", "\"quoted\" \\ 'and' ; --", " ",
                       std::string(150, 'x')};
    if (t.can.any_type) types.insert(types.end(), odd.begin(), odd.end());
    for (const std::string& type : types) {
        what.type = type;
        check_named(t, worker, what);
    }
    what.type = "contract.named";
    if (!t.can.any_id) return;
    for (const std::string& id : odd) {
        what.id = id;
        check_named(t, worker, what);
    }
    what.id = "..";
    check_named(t, worker, what);
}

inline void odd_reports(trial& t) {
    test_worker worker(t);
    const texts messages = {"", "gr\u00fc\u00df \U0001f600 \" \\ / ' ; -- %s \n\r\t\x01\x1f\x7f",
                            std::string(50000, 'm')};
    const std::string id = t.push("[]", 9);
    for (const std::string& message : messages) {
        t.equal(worker.claim_one().id, id, "the id");
        const ojs::job_error why = {"odd \u20ac code", message, true, "{\"cause\":[1,{\"text\":\"\u00fc\\n\"}]}"};
        check_accepted(t, worker.wire->fail(worker.failing(id, why), soon()), "FAIL with an odd error");
        t.state_is(id, job_state::waiting);
    }
    t.equal(worker.claim_one().id, id, "the id");
    worker.ack(id);
    for (const std::string& answer : {std::string(), std::string("null"), std::string("\"\u00fc \\\" \\n\""),
                                      std::string("[1.10,{\"a\":[]}]"), large(50000)}) {
        const std::string done = worker.claim_new();
        check_accepted(t, worker.try_ack(done, answer), "ACK with an odd result");
        t.state_is(done, job_state::completed);
    }
}
}  // namespace transport_contract
