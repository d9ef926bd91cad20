"""What happens to a fleet. Each scenario begins in the steady state, at EVENT seconds."""

import math
from dataclasses import dataclass
from typing import Callable

from model import REFUSED, UNAVAILABLE, Fleet

EVENT = 30
SPREAD = 1.0  # seconds, from the first signal or start of a wave to the last
OUTAGE = 60.0
TIMES_STEADY = 3  # what a backend is sized for, and what no peak should exceed without a deadline


def steady_rates(inputs, workers, job_seconds):
    """Requests a second. Each job is a FETCH and an ACK: a busy worker fetches for the one slot that is free."""
    jobs = workers * inputs.concurrency / job_seconds
    return {"FETCH": jobs, "ACK": jobs, "BEAT": workers / inputs.heartbeat_interval}


def steady_load(inputs, workers, job_seconds):
    return sum(steady_rates(inputs, workers, job_seconds).values())


def backend_scale(inputs, workers, job_seconds, times_steady):
    """So that the steady load keeps the backend busy for one part in `times_steady`."""
    rates = steady_rates(inputs, workers, job_seconds)
    return 1 / (times_steady * sum(inputs.costs[kind] * rate for kind, rate in rates.items()))


def restart(fleet, part):
    """Signals a part of the workers, and the next one when all successors have started."""
    old = list(fleet.workers)
    size = math.ceil(len(old) * part)
    waves = [old[i : i + size] for i in range(0, len(old), size)]

    def begin_wave():
        wave = waves.pop(0)
        awaited = [len(wave)]

        def start_successor():
            fleet.start()
            awaited[0] -= 1
            if awaited[0] == 0 and waves:
                begin_wave()

        for worker in wave:
            worker.on_end = lambda: fleet.sim.after(fleet.sim.random.uniform(1, 3), start_successor)
            fleet.sim.after(fleet.sim.random.random() * SPREAD, worker.stop)

    begin_wave()


def lose_zone(fleet, _):
    """A third of the workers gets a reclaim at once. Others replace them half a minute later."""
    for worker in fleet.workers[::3]:
        worker.on_end = lambda: fleet.sim.after(fleet.sim.random.uniform(30, 60), fleet.start)
        fleet.sim.after(fleet.sim.random.random() * SPREAD, worker.reclaim)


def refuse(fleet, _):
    fleet.backend.go_down(REFUSED)
    fleet.sim.after(OUTAGE, fleet.backend.return_)


def maintain(fleet, _):
    """503 with the seconds that are left as Retry-After."""
    ends_at = fleet.sim.now + OUTAGE
    fleet.backend.go_down(UNAVAILABLE, lambda: float(math.ceil(ends_at - fleet.sim.now)))
    fleet.sim.at(ends_at, fleet.backend.return_)


@dataclass
class Scenario:
    title: str
    event: Callable
    seconds: int  # to look at after the event
    job_seconds: float = 30  # the mean of an exponential distribution
    look_from: int = 0  # second from which the peak counts
    begins_empty: bool = False


SCENARIOS = {
    "start": Scenario("all start within 1 s, with jobs of 10 min", lambda fleet, workers: fleet.start_over(workers, SPREAD), 60, 600,
                      look_from=3, begins_empty=True),
    "rolling": Scenario("rolling restart, a quarter at a time", lambda fleet, _: restart(fleet, 0.25), 190),
    "at-once": Scenario("all restart at once", lambda fleet, _: restart(fleet, 1), 70),
    "zone": Scenario("a third is reclaimed at once", lose_zone, 90),
    "outage": Scenario("the backend refuses connections for 60 s", refuse, 120),
    "retry-after": Scenario("503 with Retry-After for 60 s", maintain, 150),
}


def run(scenario, inputs, workers, seed=1, times_steady=TIMES_STEADY):
    """The fleet after the scenario: a backlog of jobs, and a backend for `times_steady` of the steady load."""
    mean = scenario.job_seconds
    scale = backend_scale(inputs, workers, mean, times_steady)
    fleet = Fleet(inputs, scale, lambda random: random.expovariate(1 / mean), seed)
    if not scenario.begins_empty:
        fleet.start_over(workers, inputs.heartbeat_interval)
    fleet.watch(EVENT)
    scenario.event(fleet, workers)
    fleet.watch(EVENT + scenario.seconds)
    return fleet


@dataclass
class Outcome:
    """What a scenario showed; per second from the event on."""

    steady: float
    requests: list
    served: list  # without those sent while the backend was down
    waiting: list
    jobs: int  # that the workers have room for
    unreported: int
    expired: int

    def peak(self, scenario):
        """(requests a second as a multiple of the steady load, second), of what reached the backend."""
        seen = self.served[scenario.look_from :]
        return max(seen) / self.steady, seen.index(max(seen)) + scenario.look_from

    def attempts(self):
        return max(self.requests) / self.steady

    def reported_after(self):
        """The second after which fewer than 1% of the jobs wait."""
        limit = self.jobs / 100
        return max((i + 1 for i, jobs in enumerate(self.waiting) if jobs > limit), default=0)


def outcome(name, inputs, workers, seed=1, times_steady=TIMES_STEADY):
    scenario = SCENARIOS[name]
    fleet = run(scenario, inputs, workers, seed, times_steady)
    end = EVENT + scenario.seconds
    requests = fleet.requests(EVENT, end)
    return Outcome(
        steady_load(inputs, workers, scenario.job_seconds),
        requests,
        [total - fleet.backend.rejected[second] for second, total in enumerate(requests, EVENT)],
        [jobs for second, jobs in fleet.waiting.items() if second > EVENT],
        workers * inputs.concurrency,
        fleet.unreported,
        fleet.backend.expired,
    )
