"""What handlers did, from the file to which the workers of a test append: "begin ID ATTEMPT PID KIND" and "end ..." lines, each
by one write, so that they stand in the order in which things happened. A test adds "killed PID" before it kills."""

from collections import Counter, defaultdict
from types import SimpleNamespace


def note_kill(path, pid):
    with open(path, "a") as file:
        file.write(f"killed {pid}\n")


class Trace:
    def __init__(self, path):
        self.runs, self.overlaps, self.killed = defaultdict(list), [], set()
        open_runs = defaultdict(list)
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            word, *rest = line.split(" ", 4)
            if word == "killed":
                self.killed.add(int(rest[0]))
                continue
            job, attempt, pid = map(int, rest[:3])
            if word == "begin":
                beside = [run for run in open_runs[job] if run.pid not in self.killed]
                if beside:
                    self.overlaps.append((job, beside[0].pid, pid))
                run = SimpleNamespace(job=job, attempt=attempt, pid=pid, kind=rest[3], ended=False, killed=False)
                self.runs[job].append(run)
                open_runs[job].append(run)
            else:
                run = next(run for run in open_runs[job] if run.pid == pid and run.attempt == attempt)
                run.ended = True
                open_runs[job].remove(run)
        for run in (run for each in self.runs.values() for run in each):
            run.killed = not run.ended and run.pid in self.killed

    def counts(self):
        """How often each job was run."""
        return Counter({job: len(runs) for job, runs in self.runs.items()})

    def unended(self):
        """Jobs with a run that has no end though nobody killed its process."""
        return [job for job, runs in self.runs.items() for run in runs if not run.ended and not run.killed]
