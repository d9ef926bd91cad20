"""Consumers of a broker that are stopped in every way while they work, and then an account of every message: check() for
queues_test.py. A row for each program is in docs/backends.md.

A consumer prints "done ID" when it has processed a message, before it settles it. The files it prints to are the account:
a message that no line names, after the broker has no more to deliver, is lost; one that two lines name was doubled.
"""

import contextlib
import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kafka import KafkaServer
from nats_server import NatsServer
from rabbitmq import RabbitMQ
from redis_server import RedisServer

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import programs  # noqa: E402
from programs import BUILD  # noqa: E402

QUEUE = "work"
GUARD = 60  # seconds without progress that end a run
eventually = functools.partial(programs.eventually, limit=GUARD)
GRACE, STOP_TIMEOUT = 5, 3  # seconds
FROZEN = 2  # seconds that the broker stands still in a drain
# What happens to a consumer, or to the broker while a consumer is stopped; how often of 20. Fewer stops have each kind once.
PLAN = {"SIGTERM": 6, "SIGTERM twice": 3, "SIGKILL": 3, "quiet and resume": 3, "broker restarted": 1, "broker killed": 1,
        "broker frozen": 3}
OF_THE_BROKER = {"broker restarted", "broker killed", "broker frozen"}
MAY_DOUBLE = OF_THE_BROKER | {"SIGKILL"}


@dataclass
class Consumer:
    broker: type
    is_worker: bool  # with its address in the environment; a loop has it in its arguments
    processes: int = 2
    slots: int = 4  # messages that one process works on
    unsettled: int = 4  # that it has done or works on, and the broker may deliver again after SIGKILL
    forgotten: int = 0  # that it has done, and the broker may deliver again after it is killed
    leaves_out: frozenset = frozenset()
    slack: int = 5  # seconds, for a busy machine
    statuses: frozenset = frozenset({0})  # of a stop while the broker responds


CONSUMERS = {
    "amqp_worker": Consumer(RabbitMQ, True),
    "amqp_loop": Consumer(RabbitMQ, False),
    "redis_streams_worker": Consumer(RedisServer, True),
    "redis_streams_loop": Consumer(RedisServer, False),
    "nats_loop": Consumer(NatsServer, False, forgotten=150),  # NATS writes ACKs to its file every 100 ms
    # queues_test.py has SIGTERM twice: what is done behind an interrupted message comes again.
    "kafka_loop": Consumer(KafkaServer, False, unsettled=250, leaves_out=frozenset({"SIGTERM twice"})),
}


def missing(broker, program):
    """What is not installed; empty: nothing."""
    absent = [each for each in broker.programs
              if not shutil.which(each, path=f"{os.environ.get('PATH', '')}:/usr/sbin")]
    if not (BUILD / program).exists():
        absent.append(program)
    if not absent and hasattr(broker, "install"):
        absent = broker.install()
    return ", ".join(absent)


# ---- a run -----------------------------------------------------------------------------------------------------------


class Process:
    def __init__(self, command, variables, folder, number):
        self.account, self.log = folder / f"account-{number}", folder / f"log-{number}"
        with open(self.account, "ab") as out, open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=log, env={**os.environ, **variables})

    def signal(self, number):
        self.process.send_signal(number)

    def has_ended(self):
        return self.process.poll() is not None

    def says(self, pattern):
        return re.search(pattern, self.log.read_text(errors="replace")) is not None


@dataclass
class Outcome:
    messages: int = 0
    lost: int = 0
    doubled: int = 0
    may_double: int = 0
    left: int = 0
    max_stop: float = 0
    events: Counter = field(default_factory=Counter)
    statuses: Counter = field(default_factory=Counter)
    faults: list = field(default_factory=list)


class Run(contextlib.ExitStack):
    def __init__(self, title, messages, stops, seed):
        super().__init__()
        self.title, self.consumer = title, CONSUMERS[title]
        self.messages, self.choose = messages, random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-queues-"))
        self.broker = self.consumer.broker()
        self.callback(self.broker.close)
        self.broker.start()
        self.broker.declare(QUEUE)
        self.plan = self.plan_of(stops)
        self.outcome = Outcome(messages=messages)
        self.started, self.published = 0, 0
        self.running = [self.start() for _ in range(self.consumer.processes)]

    def plan_of(self, stops):
        counts = {kind: count for kind, count in PLAN.items() if kind not in self.consumer.leaves_out}
        kinds = [*counts, *(kind for kind, count in counts.items() for _ in range(count - 1))]
        plan = (kinds * (stops // len(kinds) + 1))[:stops or len(counts)]
        self.choose.shuffle(plan)
        return plan

    def start(self):
        variables = {"OJS_SHUTDOWN_GRACE_PERIOD": f"{GRACE}s", "OJS_STOP_TIMEOUT": f"{STOP_TIMEOUT}s",
                     "OJS_CONCURRENCY": str(self.consumer.slots), "OJS_VISIBILITY_TIMEOUT": "5s",
                     "OJS_HEARTBEAT_INTERVAL": "1s", "OJS_POLL_INTERVAL": "100ms", "OJS_SIGNAL_DEBOUNCE": "1ms"}
        arguments = []
        if self.consumer.is_worker:
            variables |= self.broker.variables(QUEUE)
        else:
            arguments = self.broker.arguments(QUEUE)
        self.started += 1
        process = Process([BUILD / self.title, *arguments], variables, self.folder, self.started)
        self.callback(process.process.wait)
        self.callback(process.process.kill)
        return process

    def done(self):
        if hasattr(self.broker, "done"):
            return Counter(self.broker.done())
        lines = []
        for each in self.folder.glob("account-*"):
            lines += each.read_text().splitlines()
        return Counter(line.split()[1] for line in lines if line.startswith("done "))

    def milliseconds(self):
        """Of work. Some take so long that a second SIGTERM finds them in progress."""
        return 300 if self.choose.randrange(100) == 0 else self.choose.randrange(1, 16)

    def publish(self, count):
        bodies = [f"m{self.published + i} {self.milliseconds()}" for i in range(count)]
        self.published += count
        self.broker.publish(QUEUE, bodies)

    def ends(self, process, begun):
        """Its exit status within the time that a stop may take."""
        limit = GRACE + STOP_TIMEOUT + self.consumer.slack
        try:
            status = process.process.wait(max(0.1, begun + limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.outcome.faults.append(f"a process had not ended {limit} s after its SIGTERM")
            process.process.kill()
            status = process.process.wait()
        self.outcome.max_stop = max(self.outcome.max_stop, time.monotonic() - begun)
        return status

    def note(self, status, expected):
        self.outcome.statuses[status] += 1
        if status not in expected:
            self.outcome.faults.append(f"exit status {status}")

    def stop(self, kind):
        self.outcome.events[kind] += 1
        if kind in MAY_DOUBLE:
            processes = self.consumer.processes if kind in OF_THE_BROKER else 1
            self.outcome.may_double += processes * self.consumer.unsettled
        if kind == "broker killed":
            self.outcome.may_double += self.consumer.forgotten
        if kind == "quiet and resume":
            return self.rest()
        process = self.running.pop(0)
        if kind == "SIGKILL":
            if hasattr(self.broker, "note_kill"):
                self.broker.note_kill(process.process.pid)
            process.signal(signal.SIGKILL)
            self.note(process.process.wait(), {-signal.SIGKILL})
        else:
            self.terminate(process, kind)
        self.running.append(self.start())

    def terminate(self, process, kind):
        if kind == "broker restarted":
            self.broker.stop()
        elif kind == "broker killed":
            self.broker.kill()
        begun = time.monotonic()
        process.signal(signal.SIGTERM)
        if kind == "SIGTERM twice":
            eventually(lambda: process.has_ended() or process.says('"draining"'))
            process.signal(signal.SIGTERM)  # none, if it has ended
        elif kind == "broker frozen":
            self.broker.freeze()
            time.sleep(FROZEN)
            self.broker.thaw()
        # A second SIGTERM that comes when all is done has its default effect: OJS_SIGNAL_DEBOUNCE is short here.
        second = {-signal.SIGTERM} if kind == "SIGTERM twice" else set()
        self.note(self.ends(process, begun), second | ({0, 75} if kind in OF_THE_BROKER else self.consumer.statuses))
        if kind in {"broker restarted", "broker killed"}:
            self.broker.start()

    def rest(self):
        """All are quiet: what is published meanwhile waits."""
        for each in self.running:
            each.signal(signal.SIGTSTP)

        def stands_still():
            before = sum(self.done().values())
            time.sleep(0.3)
            return sum(self.done().values()) == before

        if not eventually(stands_still) or not stands_still():
            self.outcome.faults.append("messages were processed while quiet")
        for each in self.running:
            each.signal(signal.SIGCONT)

    def execute(self):
        batch = max(1, self.messages // (len(self.plan) + 1))
        for number, kind in enumerate(self.plan):
            self.publish(batch)
            # Stopped in the middle of its work.
            eventually(lambda: len(self.done()) >= number * batch + batch // 4)
            self.stop(kind)
        self.publish(self.messages - self.published)
        self.finish()
        return self.outcome

    def finish(self):
        count, moved = -1, time.monotonic()
        while count < self.messages and time.monotonic() - moved < GUARD:
            now = len(self.done())
            count, moved = (now, time.monotonic()) if now != count else (count, moved)
            time.sleep(0.05)
        # What was done, but not settled, comes again.
        eventually(lambda: self.broker.left(QUEUE) == 0)
        for each in self.running:
            begun = time.monotonic()
            each.signal(signal.SIGTERM)
            self.note(self.ends(each, begun), self.consumer.statuses)
        done = self.done()
        self.outcome.lost = self.messages - len(done)
        self.outcome.doubled = sum(done.values()) - len(done)
        self.outcome.left = self.broker.left(QUEUE)
        self.judge()

    def judge(self):
        out = self.outcome
        if out.lost != 0:
            out.faults.append(f"{out.lost} messages were lost")
        if out.doubled > out.may_double:
            out.faults.append(f"{out.doubled} messages were doubled; {out.may_double} may be")
        if out.left != 0:
            out.faults.append(f"{out.left} messages were left at the broker")
        if hasattr(self.broker, "faults"):
            out.faults += self.broker.faults()


def check(test, title, messages=2000):
    """Without OJS_TEST_MESSAGES and OJS_TEST_STOPS: so many messages, and a stop of each kind."""
    absent = missing(CONSUMERS[title].broker, title)
    if absent:
        test.skipTest(f"{absent} is missing")
    numbers = [int(os.environ.get(f"OJS_TEST_{name}") or default)
               for name, default in (("MESSAGES", messages), ("STOPS", 0), ("SEED", 1))]
    with Run(title, *numbers) as one:
        outcome = one.execute()
    print(f"{title}: {outcome}")
    test.assertEqual(outcome.faults, [], f"{outcome}; see {one.folder}")
    shutil.rmtree(one.folder)
