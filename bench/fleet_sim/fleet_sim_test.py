"""The simulator: its figures follow from its inputs."""

import math
import os
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import chart
import scenarios
from inputs import Inputs, read_inputs
from model import REFUSED, Fleet, Worker

BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build"))
PICTURE = Path(__file__).resolve().parents[2] / "docs/fleet.svg"
FAST = 1e-6  # of a backend without a queue: seconds a request
HOUR = 3600.0


def fleet_of(workers, inputs, duration=lambda random: HOUR, scale=FAST, queued=math.inf):
    fleet = Fleet(inputs, scale, duration, queued=queued)
    for _ in range(workers):
        fleet.sim.at(0, fleet.start)
    return fleet


def sent(fleet, kind):
    return sum(fleet.backend.arrivals[kind].values())


class Conservation(unittest.TestCase):
    def assert_conserved(self, fleet):
        backend = fleet.backend
        self.assertEqual(backend.created, backend.settled + len(backend.requeued) + len(backend.held))
        self.assertEqual(len(backend.held), len(set(backend.held) - set(backend.requeued)), "a job is in two places")
        self.assertEqual(len(backend.requeued), len(set(backend.requeued)))

    def test_every_job_is_queued_held_or_settled_after_every_scenario(self):
        for name, scenario in scenarios.SCENARIOS.items():
            with self.subTest(name):
                fleet = scenarios.run(scenario, Inputs(), 20)
                self.assertGreater(fleet.backend.created, 200)
                self.assert_conserved(fleet)

    def test_a_fleet_that_has_ended_holds_nothing_and_every_job_was_reported_once(self):
        fleet = fleet_of(20, Inputs(), lambda random: random.expovariate(1 / 30))
        fleet.watch(60)
        fleet.tell(Worker.stop)
        fleet.watch(100)
        self.assertEqual({}, fleet.backend.held)
        self.assertEqual(0, fleet.unreported + fleet.backend.conflicts)
        self.assertEqual(fleet.backend.settled, fleet.reports["accepted", "ACK"])
        self.assertEqual(len(fleet.backend.requeued), fleet.reports["accepted", "FAIL"])
        self.assert_conserved(fleet)

    def test_jobs_that_could_not_be_reported_come_back_when_their_leases_end(self):
        fleet = fleet_of(5, Inputs(), queued=50)
        fleet.watch(10)
        fleet.backend.go_down(REFUSED)
        fleet.tell(Worker.reclaim)
        fleet.watch(20)
        self.assertEqual(50, fleet.unreported)
        fleet.backend.return_()
        fleet.watch(20 + Inputs().visibility_timeout - 1)
        self.assertEqual(0, fleet.backend.expired)
        fleet.watch(20 + Inputs().visibility_timeout + 6)
        self.assertEqual(50, fleet.backend.expired)
        self.assert_conserved(fleet)


class ClosedForms(unittest.TestCase):
    def test_the_steady_load_is_two_requests_a_job_and_a_beat_an_interval(self):
        scenario = scenarios.Scenario("nothing happens", lambda fleet, workers: None, 60)
        fleet = scenarios.run(scenario, Inputs(), 100)
        seen = sum(fleet.requests(scenarios.EVENT, 90)) / 60
        self.assertAlmostEqual(1, seen / scenarios.steady_load(Inputs(), 100, 30), delta=0.05)

    def test_idle_workers_poll_and_beat_once_an_interval(self):
        fleet = fleet_of(10, Inputs(), queued=0)
        fleet.watch(99)
        self.assertEqual(10 * 20, sent(fleet, "BEAT"))
        self.assertAlmostEqual(10 * 99, sent(fleet, "FETCH"), delta=10)

    def test_a_backlog_of_reports_takes_its_cost(self):
        inputs = Inputs(costs={"FETCH": 1, "ACK": 1, "FAIL": 1, "BEAT": 0})
        fleet = fleet_of(10, inputs, scale=0.02, queued=100)
        fleet.watch(10)
        fleet.tell(Worker.reclaim)
        fleet.watch(11)  # fifty FAILs of 20 ms a second
        self.assertAlmostEqual(50, fleet.waiting[11], delta=2)
        fleet.watch(13)
        self.assertEqual(0, fleet.waiting[13])
        self.assertEqual(0, fleet.unreported)

    def test_a_backlog_beyond_the_stops_time_is_unreported(self):
        inputs = Inputs(costs={"FETCH": 0, "ACK": 0, "FAIL": 1, "BEAT": 0})
        fleet = fleet_of(10, inputs, scale=0.2, queued=100)
        fleet.watch(10)
        fleet.tell(Worker.reclaim)
        fleet.watch(30)
        self.assertGreater(fleet.unreported, 50)

    def test_the_same_seed_gives_the_same_curve(self):
        curves = [scenarios.run(scenarios.SCENARIOS["zone"], Inputs(), 10, seed).requests(0, 120) for seed in (1, 1, 2)]
        self.assertEqual(curves[0], curves[1])
        self.assertNotEqual(curves[0], curves[2])


class Library(unittest.TestCase):
    """The library's own defaults and delays."""

    def test_no_peak_without_a_deadline_exceeds_three_times_the_steady_load(self):
        inputs = read_inputs(BUILD / "fleet_defaults")
        self.assertEqual((10, 5.0, 1.0), (inputs.concurrency, inputs.heartbeat_interval, inputs.poll_interval))
        limit = scenarios.TIMES_STEADY + 1  # 200 workers: chance matters more
        for name in ("start", "outage", "retry-after"):
            with self.subTest(name):
                peak, _ = scenarios.outcome(name, inputs, 200).peak(scenarios.SCENARIOS[name])
                self.assertLess(peak, limit)
                # Inputs() has delays that are neither random nor growing.
                peak, _ = scenarios.outcome(name, Inputs(costs=inputs.costs), 200).peak(scenarios.SCENARIOS[name])
                self.assertGreater(peak, limit)
        zone = scenarios.outcome("zone", inputs, 200)
        self.assertEqual((0, 0), (zone.unreported, zone.expired))

    def test_the_picture_is_small_well_formed_and_shows_every_scenario(self):
        found = {name: scenarios.Outcome(1, [1, 2], [1, 1], [0, 5], 10, 0, 0) for name in scenarios.SCENARIOS}
        for drawn in (chart.drawn(found, 10), PICTURE.read_text()):
            texts = [each.text for each in xml.fromstring(drawn).iter() if each.text]
            for name, scenario in scenarios.SCENARIOS.items():
                self.assertIn(f"{name}: {scenario.title}", texts)
            self.assertLess(len(drawn), 30_000)


if __name__ == "__main__":
    unittest.main()
