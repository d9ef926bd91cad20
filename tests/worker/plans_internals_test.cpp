// What a worker computes from its arguments alone: pauses, back-offs, how many jobs to ask for, and which failures count.
#include "test.hpp"

TEST_CASE("fetch: the pause after an empty FETCH grows with the time since the last job, up to poll_interval") {
    const auto pause = [&](steady_clock::duration since) { return detail::empty_pause(since, false, 1s, 5s); };
    CHECK(pause(0ms) == 10ms);
    CHECK(pause(80ms) == 10ms);
    CHECK(pause(800ms) == 100ms);
    CHECK(pause(2s) == 250ms);
    CHECK(pause(1min) == 250ms);
    CHECK(pause(1min + 1ms) == 1s);
    CHECK(detail::empty_pause(1s, false, 5ms, 5s) == 5ms);
    CHECK(detail::empty_pause(0ms, true, 1s, 5s) == 1s);
    CHECK(detail::empty_pause(1min, true, 1s, 5s) == 1s);
    CHECK(detail::empty_pause(1min + 1ms, true, 1s, 5s) == 5s);
}

TEST_CASE("fetch: the next FETCH is due at once after jobs or a hint, else after a pause or a back-off") {
    const time_point now = steady_clock::now();
    const auto found = [](std::size_t jobs) { return result<std::size_t>(jobs); };
    const auto failed = [](errc code) { return result<std::size_t>(error{code, 0, "no"}); };
    detail::fetch_schedule schedule(1h, 2h);
    CHECK(schedule.due() == time_point::min());
    CHECK(schedule.schedule_next(found(0), schedule.hints(), true, now));
    CHECK(schedule.due() == now + 1h);  // no job has come yet
    schedule.note_work_hint();
    CHECK(schedule.due() == time_point::min());
    CHECK(schedule.schedule_next(found(2), schedule.hints(), false, now));
    CHECK(schedule.due() == time_point::min());
    CHECK(schedule.schedule_next(found(0), schedule.hints(), false, now));
    CHECK(schedule.due() == now + 10ms);  // soon after jobs
    const std::uint64_t before = schedule.hints();
    schedule.note_work_hint();  // while the FETCH is in flight
    CHECK(schedule.schedule_next(found(0), before, false, now));
    CHECK(schedule.due() == time_point::min());
    CHECK(schedule.schedule_next(failed(errc::cancelled), schedule.hints(), false, now));
    CHECK(schedule.due() == now + 10ms);
    CHECK_FALSE(schedule.schedule_next(failed(errc::unreachable), schedule.hints(), false, now));
    const time_point backed_off = schedule.due();
    CHECK(backed_off > now + 50ms);
    schedule.note_work_hint();  // ignored: the backend fails
    CHECK(schedule.due() == backed_off);
    CHECK(schedule.schedule_next(found(1), schedule.hints(), false, now));  // an earlier FETCH, which overlaps
    CHECK(schedule.due() == backed_off);
    CHECK(schedule.schedule_next(found(1), schedule.hints(), false, backed_off));
    CHECK(schedule.due() == time_point::min());
}

TEST_CASE("fetch limit: one job at first, doubled by full responses, lowered by large jobs, one after a cut response") {
    const time_point start = steady_clock::now();
    detail::fetch_limit limit(90s);
    const auto note = [&](result<std::size_t> fetched, int at) {
        limit.note(limit.max_count(), fetched, start + std::chrono::seconds(at));
        return limit.max_count();
    };
    struct step {
        std::size_t claimed;
        std::size_t kib;  // of each
        int at;
        std::size_t next;
    };
    for (const step& each :
         {step{1, 1, 0, 2}, step{2, 1, 0, 4}, step{4, 1, 0, 8}, step{8, 1, 0, 16}, step{16, 1, 0, 32},
          step{32, 1, 0, 64}, step{0, 0, 0, 64}, step{63, 1, 0, 64}, step{1, 100, 0, 10}, step{1, 2000, 1, 1},
          // From 91 s on, the large one counts for 1000 KiB.
          step{1, 1, 90, 1}, step{1, 1, 91, 1}, step{1, 1, 181, 2}, step{2, 1, 271, 4}}) {
        CAPTURE(each.next);
        limit.note_size(each.kib * 1024, start + std::chrono::seconds(each.at));
        CHECK(note(each.claimed, each.at) == each.next);
    }
    CHECK(note(error{errc::unreachable, 0, "it claimed nothing"}, 272) == 4);
    CHECK(note(error{errc::bad_response, 0, "cut"}, 272) == 1);
    CHECK(note(1, 361) == 1);  // the jobs of the cut response may be among the next
    CHECK(note(error{errc::timed_out, 0, "with one job"}, 361) == 1);
    limit.note_size(1024, start + 362s);
    CHECK(note(1, 362) == 2);
    CHECK(note(error{errc::disconnected, 0, "with two"}, 362) == 1);
    CHECK(note(1, 363) == 1);
}

TEST_CASE("settlement: a back-off is at most half of the time to the deadline, or half a second") {
    const time_point now = steady_clock::now();
    const auto delay = [now](time_point deadline, std::chrono::milliseconds wanted) {
        return detail::next_try_at(now, deadline, wanted) - now;
    };
    CHECK(delay(time_point::max(), 20s) == 20s);
    CHECK(delay(now + 30s, 20s) == 15s);
    CHECK(delay(now + 30s, 100ms) == 100ms);
    CHECK(delay(now + 4500ms, 20s) == 2250ms);
    CHECK(delay(now + 800ms, 20s) == 500ms);
    CHECK(delay(now - 1s, 20s) == 500ms);
    CHECK(delay(now + 10ms, 100ms) == 100ms);
}

TEST_CASE("outage: requests without a response, or with 401, 502, 503 or 504, are one outage, logged once") {
    using detail::outage_of;
    for (const errc code : {errc::unreachable, errc::disconnected, errc::timed_out})
        CHECK(outage_of({code, 0, ""}) == "backend unreachable");
    for (const int proxy_status : {502, 503, 504})
        CHECK(outage_of({errc::unavailable, 0, "", proxy_status}) == "backend unreachable");
    CHECK(outage_of({errc::unavailable, 0, "", 401}) == "backend refuses the token");
    for (const int status : {0, 403, 429, 500, 501, 505}) CHECK(outage_of({errc::unavailable, 0, "", status}).empty());
    CHECK(outage_of({errc::cancelled, 0, ""}).empty());
    CHECK(outage_of({errc::rejected, 0, "", 400}).empty());
}

TEST_CASE("log: a backend's URL is shown without user, password and query") {
    CHECK(detail::public_url("http://h:1/base?key=x") == "http://h:1/base");
    CHECK(detail::public_url("amqp://u:p@h:5672/v") == "amqp://h:5672/v");
    CHECK(detail::public_url("host=h password=x").find("=x") == std::string::npos);
    CHECK(detail::public_url("secret@h").find("secret") == std::string::npos);
}
