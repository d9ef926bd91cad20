"""A discrete-event model of many workers and their backend.

A worker sends FETCH, ACK, FAIL and BEAT when src/ojs/worker does, with the delays of Inputs. The backend serves
requests one after another. Each job is in exactly one place: the queue, a worker, or settled.
"""

import heapq
import itertools
import math
import random
from collections import Counter, deque

from inputs import KINDS

RUNNING, DRAINING, STOPPING, ENDED = range(4)
ACCEPTED, GONE, UNAVAILABLE, TIMED_OUT, REFUSED = "accepted", "gone", "unavailable", "timed out", "refused"
ROUND_TRIP = 0.001


class Simulation:
    """The clock, and the events to come. Everything random is drawn from one seeded generator."""

    def __init__(self, seed=1):
        self.now = 0.0
        self.random = random.Random(seed)
        self.events = []
        self.order = itertools.count()

    def at(self, when, call, *arguments):
        heapq.heappush(self.events, (when if when > self.now else self.now, next(self.order), call, arguments))

    def after(self, delay, call, *arguments):
        self.at(self.now + delay, call, *arguments)

    def run(self, until):
        events = self.events
        while events and events[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(events)
            call(*arguments)
        self.now = until

    def draw(self, samples):
        return samples[int(self.random.random() * len(samples))]


class Backend:
    """Serves one request after another, in the order of their arrival; each takes its cost times `scale` seconds."""

    def __init__(self, sim, inputs, scale, queued=math.inf):
        self.sim = sim
        self.inputs = inputs
        self.cost = {kind: cost * scale for kind, cost in inputs.costs.items()}
        self.busy_until = 0.0
        self.down = None  # or how it answers: REFUSED, UNAVAILABLE
        self.retry_after = lambda: 0.0  # of its 503
        self.lease_base = 0.0  # leases begin here or later: after an outage each job has a full one again
        self.fresh = queued  # jobs never claimed
        self.requeued = deque()
        self.held = {}  # job: (worker, when its lease began)
        self.settled = 0
        self.created = 0
        self.conflicts = 0
        self.expired = 0
        self.arrivals = {kind: Counter() for kind in KINDS}  # second: requests
        self.rejected = Counter()  # second: requests while it was down

    def send(self, kind, timeout, on_response, process, *arguments):
        """Calls on_response(status, value) when the response or the timeout is there."""
        sim = self.sim
        self.arrivals[kind][int(sim.now)] += 1
        if self.down:
            self.rejected[int(sim.now)] += 1
            return sim.after(ROUND_TRIP, on_response, self.down, self.retry_after())
        begins = self.busy_until if self.busy_until > sim.now else sim.now
        self.busy_until = begins + self.cost[kind]
        answered_at = self.busy_until + ROUND_TRIP
        status, value = process(*arguments)  # the order is that of arrival
        if answered_at > sim.now + timeout:
            return sim.after(timeout, on_response, TIMED_OUT, None)
        return sim.at(answered_at, on_response, status, value)

    def claim(self, worker, count):
        jobs = []
        while len(jobs) < count and self.requeued:
            jobs.append(self.requeued.popleft())
        while len(jobs) < count and self.fresh > 0:
            self.fresh -= 1
            self.created += 1
            jobs.append(self.created)
        for job in jobs:
            self.held[job] = (worker, self.sim.now)
        return ACCEPTED, jobs

    def settle(self, worker, job, requeue):
        held = self.held.get(job)
        if held is None or held[0] is not worker:
            self.conflicts += 1
            return GONE, None
        del self.held[job]
        if requeue:
            self.requeued.append(job)
        else:
            self.settled += 1
        return ACCEPTED, None

    def beat(self, worker):
        extended = [job for job in worker.jobs if self.held.get(job, (None,))[0] is worker]
        for job in extended:
            self.held[job] = (worker, self.sim.now)
        return ACCEPTED, None

    def expire_leases(self):
        """Puts the jobs of workers that no longer send heartbeats back into the queue."""
        if not self.down:
            limit = self.sim.now - self.inputs.visibility_timeout
            for job in [job for job, (_, since) in self.held.items() if max(since, self.lease_base) < limit]:
                del self.held[job]
                self.requeued.append(job)
                self.expired += 1
        self.sim.after(5.0, self.expire_leases)

    def go_down(self, kind, retry_after=lambda: 0.0):
        self.down, self.retry_after = kind, retry_after

    def return_(self):
        self.down = None
        self.lease_base = self.sim.now


class Timer:
    """Calls once at the earliest time that was set since the last call."""

    def __init__(self, sim, call):
        self.sim, self.call = sim, call
        self.when = math.inf

    def set(self, when):
        if when < self.when:
            self.when = when
            self.sim.at(when, self.on_time, when)

    def on_time(self, when):
        if self.when == when:
            self.when = math.inf
            self.call()


class Worker:
    def __init__(self, fleet):
        self.fleet, self.sim, self.backend, self.inputs = fleet, fleet.sim, fleet.backend, fleet.inputs
        self.phase = RUNNING
        self.jobs = {}  # unreported job: whether its handler still runs
        self.requested = 0
        self.fetch_due = -math.inf
        self.fetch_failures = 0
        self.backing_off = False
        self.hints = 0
        self.fetch_timer = Timer(self.sim, self.fetch_if_due)
        self.beats = 0
        self.beat_at = -math.inf  # when the latest began
        self.beat_requested = False
        self.beat_in_flight = False
        self.beat_timer = Timer(self.sim, self.send_beat)
        self.lease_from = {}  # job: since when its lease runs, as the worker knows it
        self.lease_waiters = []
        self.waiting = {}  # job: what retries its report
        self.report_deadline = math.inf
        self.drain_deadline = math.inf
        self.latest_job_at = -math.inf
        self.on_end = None
        self.send_beat()
        self.fetch_if_due()

    # ---- FETCH: slots.ipp, fetch_schedule ----

    def fetch_if_due(self):
        if self.phase != RUNNING:
            return
        free = self.inputs.concurrency - len(self.jobs) - self.requested
        if free <= 0:
            return
        now = self.sim.now
        if now < self.fetch_due:
            return self.fetch_timer.set(self.fetch_due)
        self.requested += free
        hints = self.hints
        self.backend.send("FETCH", self.inputs.request_timeout,
                          lambda status, value: self.on_fetched(status, value, free, hints, now),
                          self.backend.claim, self, free)  # fmt: skip

    def on_fetched(self, status, value, count, hints, sent):
        self.requested -= count
        jobs = value if status == ACCEPTED else []
        for job in jobs:
            self.jobs[job] = True
            self.lease_from[job] = sent
            if self.phase == RUNNING:
                self.sim.after(self.fleet.duration(), self.on_handler_returned, job)
            else:
                self.report("FAIL", job, 0)
        self.schedule_fetch(status, value, len(jobs), hints)
        self.fetch_if_due()
        self.end_if_idle()

    def schedule_fetch(self, status, value, claimed, hints):
        now = self.sim.now
        if self.backing_off and now < self.fetch_due:
            return
        self.backing_off = status != ACCEPTED
        if self.backing_off:
            self.fetch_due = now + self.backoff(self.inputs.fetch_backoff, self.fetch_failures, status, value)
            self.fetch_failures += 1
            return
        self.fetch_failures = 0
        if claimed:
            self.latest_job_at = now
        self.fetch_due = -math.inf if claimed or hints != self.hints else now + self.empty_pause(now - self.latest_job_at)

    def empty_pause(self, since_job):
        if since_job > 60:
            return self.inputs.poll_interval
        return min(self.inputs.poll_interval, max(0.010, min(since_job / 8, 0.250)))

    def backoff(self, steps, step, status=None, retry_after=0.0):
        delay = self.sim.draw(steps[min(step, len(steps) - 1)])
        if status != UNAVAILABLE or delay > retry_after:
            return delay
        return retry_after * self.sim.draw(self.inputs.retry_after)

    # ---- ACK and FAIL: reports.ipp ----

    def on_handler_returned(self, job):
        if self.jobs.get(job):
            self.report("ACK", job, 0)

    def try_time(self):
        half = (self.report_deadline - self.sim.now) / 2
        return min(max(half, self.inputs.min_try_time), self.inputs.request_timeout)

    def report(self, kind, job, tries):
        if self.sim.now >= self.report_deadline:
            return
        self.jobs[job] = False
        if self.sim.now > self.lease_from[job] + self.inputs.visibility_timeout:
            self.lease_waiters.append(lambda status: self.after_beat(status, kind, job, tries))
            return self.send_beat()
        self.send_report(kind, job, tries)

    def after_beat(self, status, kind, job, tries):
        if job not in self.jobs or self.phase == ENDED:
            return
        if status == ACCEPTED:
            self.lease_from[job] = self.beat_at
            return self.send_report(kind, job, tries)
        self.on_reported(status, 0.0, kind, job, tries)

    def send_report(self, kind, job, tries):
        self.backend.send(kind, self.try_time(),
                          lambda status, value: self.on_reported(status, value, kind, job, tries),
                          self.backend.settle, self, job, kind == "FAIL")  # fmt: skip

    def on_reported(self, status, value, kind, job, tries):
        if job not in self.jobs or self.phase == ENDED:
            return
        if status in (ACCEPTED, GONE):
            del self.jobs[job], self.lease_from[job]
            self.fleet.reports[status, kind] += 1
            self.hints += 1  # a slot is free
            if not self.backing_off:
                self.fetch_due = -math.inf
            self.fetch_if_due()
            return self.end_if_idle()
        retry_at = self.next_try_at(self.backoff(self.inputs.report_backoff, tries, status, value))
        again = (kind, job, tries + 1)
        self.waiting[job] = again
        self.sim.at(min(retry_at, self.report_deadline), self.retry, again)

    def next_try_at(self, delay):
        now = self.sim.now
        deadline = self.report_deadline if self.report_deadline < math.inf else self.drain_deadline
        return now + max(min(delay, (deadline - now) / 2), min(delay, 0.5))

    def retry(self, again):
        if self.phase != ENDED and self.waiting.get(again[1]) is again:
            del self.waiting[again[1]]
            self.report(*again)

    def retry_now(self):
        for again in list(self.waiting.values()):
            self.retry(again)

    # ---- BEAT: heartbeats.ipp, beat_plan.ipp ----

    def send_beat(self):
        if self.phase == ENDED:
            return
        if self.beat_in_flight:
            self.beat_requested = True
            return
        self.beats += 1
        self.beat_at = self.sim.now
        self.beat_requested = False
        self.beat_timer.when = math.inf
        self.beat_in_flight = True
        waiters, self.lease_waiters = self.lease_waiters, []
        must_arrive = self.phase != RUNNING
        self.backend.send("BEAT", self.inputs.request_timeout,
                          lambda status, value: self.on_beat(status, value, must_arrive, waiters),
                          self.backend.beat, self)  # fmt: skip
        gap = self.inputs.heartbeat_interval * (self.sim.draw(self.inputs.first_gap) if self.beats == 1 else 1)
        self.beat_timer.set(self.beat_at + gap)

    def on_beat(self, status, value, must_arrive, waiters):
        self.beat_in_flight = False
        if self.phase == ENDED:
            return
        if status == ACCEPTED:
            for job, since in self.lease_from.items():
                if self.sim.now <= since + self.inputs.visibility_timeout:
                    self.lease_from[job] = self.beat_at
        elif must_arrive:
            soon = self.beat_at + min(self.inputs.heartbeat_interval / 5, self.inputs.max_request_gap)
            self.beat_timer.set(self.sim.now + value if value else soon)
        for waiter in waiters:
            waiter(status)
        if self.beat_requested:
            self.send_beat()

    # ---- the stop: machine.ipp, stop_stages.ipp ----

    def stop(self):
        """SIGTERM."""
        if self.phase != RUNNING:
            return
        self.phase = DRAINING
        self.drain_deadline = self.sim.now + self.inputs.grace_period
        self.send_beat()
        self.retry_now()
        self.sim.at(self.drain_deadline, self.interrupt)
        self.end_if_idle()

    def reclaim(self):
        if self.phase != RUNNING:
            return
        self.phase = DRAINING
        self.drain_deadline = self.sim.now
        self.send_beat()
        self.interrupt()

    def interrupt(self):
        """The grace period has ended: reports every job whose handler has not returned."""
        if self.phase >= STOPPING:
            return
        self.phase = STOPPING
        self.report_deadline = self.sim.now + self.inputs.stop_timeout - self.inputs.last_beat_time
        self.retry_now()
        for job in [job for job, runs in self.jobs.items() if runs]:
            self.report("FAIL", job, 0)
        self.sim.at(self.report_deadline, self.end)
        self.end_if_idle()

    def end_if_idle(self):
        if self.phase in (DRAINING, STOPPING) and not self.jobs and not self.requested:
            self.end()

    def end(self):
        if self.phase == ENDED:
            return
        self.phase = ENDED
        self.fleet.unreported += len(self.jobs)
        self.send_last_beat(self.sim.now + self.inputs.last_beat_timeout)
        if self.on_end:
            self.on_end()

    def send_last_beat(self, deadline):
        def on_response(status, _):
            pause = self.inputs.last_beat_pause
            if status in (REFUSED, UNAVAILABLE) and self.sim.now + pause < deadline:
                self.sim.after(pause, self.send_last_beat, deadline)

        self.backend.send("BEAT", max(0.0, deadline - self.sim.now), on_response, lambda: (ACCEPTED, None))


class Fleet:
    """Workers, their backend, and what is counted over time. `duration` draws how long a handler runs."""

    def __init__(self, inputs, scale, duration, seed=1, queued=math.inf):
        self.sim = Simulation(seed)
        self.inputs = inputs
        self.backend = Backend(self.sim, inputs, scale, queued)
        self.duration = lambda: duration(self.sim.random)
        self.workers = []
        self.reports = Counter()  # (status, kind): jobs
        self.unreported = 0
        self.waiting = {}  # second: jobs with a result, or interrupted, that are not reported yet
        self.backend.expire_leases()

    def start(self):
        self.workers.append(Worker(self))

    def tell(self, command):
        for worker in self.workers:
            command(worker)

    def start_over(self, count, seconds):
        for _ in range(count):
            self.sim.after(self.sim.random.random() * seconds, self.start)

    def watch(self, until):
        """Counts each second the jobs that wait to be reported."""
        while self.sim.now < until:
            self.sim.run(self.sim.now + 1)
            self.workers = [each for each in self.workers if each.phase != ENDED]
            self.waiting[self.sim.now] = sum(not runs for each in self.workers for runs in each.jobs.values())

    def requests(self, first, last):
        """Of all kinds, in each second from `first` to `last`."""
        return [sum(each[second] for each in self.backend.arrivals.values()) for second in range(first, last)]
