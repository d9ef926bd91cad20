"""What became of every job, by the backend's ledger, the handlers' log, and the relay's if there is one."""

from collections import Counter, defaultdict
from types import SimpleNamespace

LEASE, TRY = 3, 1  # seconds: of a claim, and for one request
SLACK = 2  # seconds that a busy machine may hold up a thread
NEVER = float("inf")
TAKEN_BACK = ("expired", "timed_out", "requeued_from_dead", "requeued_at_deregistration", "cancelled")


class Account:
    def __init__(self, ledger, runs, requests, workers, stalls):
        """`requests`: the relay's; without it None, then the ledger has them all. `stalls`: when this machine itself stood still."""
        self.workers, self.stalls = {each.id: each for each in workers}, stalls
        self.has_relay, self.requests, self.faults, self.repeats = requests is not None, requests or [], [], 0
        self.claims, self.runs, self.reports = defaultdict(list), defaultdict(list), []
        self.jobs, self.tries, self.beats, self.faulted = {}, defaultdict(list), defaultdict(list), set()
        for event in ledger:
            if not self.has_relay:
                self.note_request(event, event["mono_ns"] / 1e9)
            self.note(event, event["mono_ns"] / 1e9)
        self.read_runs(runs)
        for each in self.requests:
            (self.beats[each.worker] if each.op == "heartbeat" else self.tries[each.worker, each.job]).append(each)

    # ---- what happened ----

    def note(self, event, at):
        what, job = event["event"], event.get("job_id")
        if what == "push":
            self.jobs[job] = None
        elif what == "fetch":
            for each in event["jobs"]:
                self.hold(self.jobs[each] != "completed", "doubled", each, "is claimed after it was completed")
                self.claims[each].append(SimpleNamespace(worker=event["worker_id"], at=at, end=NEVER, how="", run=None,
                                                         lost="lost" in event, reported="", answered=False))  # fmt: skip
        elif what in ("ack", "nack") and event["status"] == 200:
            holder = self.claims[job][-1].worker
            self.hold(event["from"] == holder, "false report", job, "of", holder, "by", event["from"])
            self.reports.append(SimpleNamespace(what=what, job=job, at=at, claim=self.claims[job][-1]))
            self.close(job, at, what)
            self.jobs[job] = "completed" if what == "ack" else event["state"]
        elif what in TAKEN_BACK:
            self.close(job, at, what)
            self.jobs[job] = event.get("state", "available")

    def note_request(self, event, at):
        """Without a relay: what an event of the ledger says about a request, which may have got no response. That of a report
        which was reset, or answered 500, does not say whose it was."""
        what, job, lost = event["event"], event.get("job_id", ""), "lost" in event
        worker = event.get("worker_id" if what == "beat" else "from")
        if what == "fault":
            self.faulted.add(job)
        if what not in ("ack", "nack", "beat"):
            return
        request = SimpleNamespace(op=what, at=at, ended=None if lost else at, verdict=None if lost else event.get("status", 200),
                                  fault="lost" if lost else "none")  # fmt: skip
        if what == "beat":
            self.beats[worker].append(request)
            return
        self.tries[worker, job].append(request)
        # The first of its claims that it may still report, as it may claim the job again before it repeats a report.
        own = [claim for claim in self.claims[job] if claim.worker == worker]
        claim = next((each for each in own if not each.answered and each.reported in ("", what)), own[-1])
        self.hold(claim.reported in ("", what), "false report", job, "by", worker, "as", claim.reported, "and as", what)
        self.hold(not claim.answered, "reported again", job, "by", worker, "after the response to its", what)
        self.repeats += bool(claim.reported)
        claim.reported, claim.answered = what, not lost

    def close(self, job, at, how):
        self.claims[job][-1].end, self.claims[job][-1].how = at, how

    def read_runs(self, path):
        for line in path.read_text().splitlines():
            word, *rest = line.split()
            if word not in ("begin", "end"):
                continue
            job, _, worker, at = rest[:4]
            at = int(at) / 1e9
            if word == "begin":
                claim = next((c for c in reversed(self.claims[job]) if c.worker == worker and c.at <= at), None)
                run = SimpleNamespace(job=job, worker=worker, begin=at, end=self.workers[worker].ended, how="", claim=claim)
                self.runs[job].append(run)
                if claim and claim.run is None:
                    claim.run = run
            else:
                run = next(r for r in reversed(self.runs[job]) if r.worker == worker and not r.how)
                run.end, run.how = at, rest[4]

    def was_frozen(self, worker, begin, end):
        return any(a <= end and b >= begin for a, b in self.workers[worker].frozen + self.stalls)

    # ---- the rules ----

    def hold(self, good, rule, *what):
        if not good:
            self.faults.append((rule, " ".join(map(str, what))))

    def check(self):
        for job, state in self.jobs.items():
            self.hold(state == "completed", "lost", job, "is", state)
            self.check_runs(job)
        for each in self.reports:
            self.check_report(each)
        self.check_late_starts()
        self.check_dropped_reports()
        self.check_dead_connections()
        self.check_unreported_claims()
        for each in self.workers.values():
            self.hold(each.process.returncode in each.may_end_with, "crashed", each.id, "ended with", each.process.returncode)

    def check_runs(self, job):
        """A run beside another one, or after one that was done: only where the claim of that one expired."""
        runs = self.runs[job]
        for at, later in enumerate(runs):
            self.hold(later.claim, "doubled", job, "runs in", later.worker, "without a claim")
            for run in runs[:at]:
                claim, worker = run.claim, self.workers[run.worker]
                in_order = claim and later.claim and claim.at <= later.claim.at
                if not in_order or (run.end < later.begin and run.how != "done"):
                    continue
                stopped = claim.end > (worker.stopped_at or NEVER) and (claim.how == "nack" or worker.process.returncode == 75)
                ended = claim is not later.claim and (claim.how == "expired" or stopped)
                self.hold(ended, "doubled", job, run.worker, later.worker, claim.how)
                same = run.worker == later.worker and run.end < later.begin and run.how == "done"
                self.hold(not same or self.was_answered(run, later.begin), "run again", job, "in", run.worker,
                          "which had no response about its claim")  # fmt: skip

    def was_answered(self, run, before):
        """By the backend, after the claim was over: the response to a report, a heartbeat or INFO could say so. The next claim
        may be on its way by then."""
        return any(t.verdict and t.at + TRY >= run.claim.end and t.ended <= before
                   for t in self.tries[run.worker, run.job] + self.beats[run.worker])  # fmt: skip

    def check_report(self, report):
        """A report is about what this worker did, under the claim that it ends."""
        worker, run = report.claim.worker, report.claim.run
        if report.what == "ack":
            done = [r for r in self.runs[report.job] if r.worker == worker and r.how == "done" and r.end <= report.at]
            self.hold(done, "false report", report.job, "ACK without a run that is done")
        elif run is not None:
            stopped = report.at > (self.workers[worker].stopped_at or NEVER)  # a FAIL may be decided before the handler returns
            self.hold(stopped or run.how != "done" or run.end > report.at, "false report", report.job, "FAIL of finished work")
            self.hold(stopped or not run.begin < report.at < run.end, "false report", report.job, "FAIL of a job that runs")

    def check_late_starts(self):
        """No handler starts after its lease, but where its process was frozen between its last look and the start."""
        for run in (r for runs in self.runs.values() for r in runs if r.claim and r.claim.how == "expired"):
            # Frozen before the backend had claimed it, it has read the response afterwards.
            before = any(a < run.claim.at < b <= run.begin for a, b in self.workers[run.worker].frozen)
            frozen = self.was_frozen(run.worker, run.claim.at, run.begin)
            late = run.begin - run.claim.end
            self.hold(late <= (0 if before else NEVER if frozen else SLACK), "started late", run.job, run.worker, f"{late:.3f} s")

    def check_dropped_reports(self):
        """The holder of a claim reports a finished job until the backend itself has responded. The time between
        two tries at most doubles, and a Retry-After adds a second."""
        for job, claims in self.claims.items():
            for claim in (c for c in claims if c.how == "expired" and c.run and c.run.how in ("done", "failed")):
                tries = [t for t in self.tries[claim.worker, job]
                         if t.op in ("ack", "nack") and claim.run.end - SLACK < t.at < claim.end]
                first, last = (tries[0].at, tries[-1].ended or tries[-1].at + TRY) if tries else (claim.run.end,) * 2
                due = last + 2 * (last - first) + SLACK
                gone = self.workers[claim.worker].ended < claim.end or self.was_frozen(claim.worker, claim.at, claim.end)
                heard = any(t.verdict for t in tries)
                self.hold(gone or heard or due > claim.end, "result dropped", job, "by", claim.worker, "after",
                          [(t.op, t.fault) for t in tries])  # fmt: skip

    def check_dead_connections(self):
        """Once a request on a kept connection has had no response in its time, and is given up, none of its age is used."""
        dead = defaultdict(list)
        for each in (r for r in self.requests if r.forgotten is not None and r.reused):
            dead[each.worker, each.forgotten].append(each)
        for (worker, event), tries in dead.items():
            since = min(t.given_up or NEVER for t in tries) + 0.5  # a thread may be held up between its time-out and the next step
            late = sum(t.at > since for t in tries if not self.was_frozen(worker, tries[0].at, t.at))
            self.hold(not late, "dead connections", worker, "sent", late, "more requests into them after event", event)

    def check_unreported_claims(self):
        """Without a relay it is known which FETCHes had a response: their claims come back only by a report, or because none
        got through in time."""
        for job, claims in self.claims.items():
            for claim in (c for c in claims if not self.has_relay and not c.lost and c.how in TAKEN_BACK):
                tried = claim.reported or job in self.faulted or self.workers[claim.worker].process.returncode < 0
                self.hold(tried, "unreported", job, "of", claim.worker, "came back:", claim.how)

    # ---- the figures ----

    def why_expired(self, claim):
        worker = self.workers[claim.worker]
        if claim.run is None:
            return "never arrived"
        if worker.ended < claim.end:
            return "process gone"
        return "frozen" if self.was_frozen(claim.worker, claim.at, claim.end) else "cut off"

    def report(self, events):
        """Prints the figures. Whether a rule was broken."""
        self.check()
        claims = [c for each in self.claims.values() for c in each]
        states, runs = Counter(self.jobs.values()), sum(map(len, self.runs.values()))
        print(f"jobs: {len(self.jobs)}, {states['completed']} completed, {len(self.jobs) - states['completed']} lost; "
              f"{len(claims)} claims, {runs} runs" + ("" if self.has_relay else f", {self.repeats} reports repeated"))
        print("expired claims:", shown(Counter(self.why_expired(c) for c in claims if c.how == "expired")))
        print("taken back:", shown(Counter(c.how for c in claims if c.how in TAKEN_BACK)) or "none")
        print("events:", shown(events), "| faults:", shown(Counter(r.fault for r in self.requests if r.fault not in ("", "none"))))
        print("workers:", shown(Counter(f"status {each.process.returncode}" for each in self.workers.values())))
        print("broken:", shown(Counter(rule for rule, _ in self.faults)) or "nothing", flush=True)
        for rule, what in self.faults[:40]:
            print(f"    {rule}: {what}")
        return bool(self.faults)


def shown(counts):
    return ", ".join(f"{counts[name]} {name}" for name in sorted(counts, key=counts.get, reverse=True))
