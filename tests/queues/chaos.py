#!/usr/bin/env python3
"""Consumers of a broker that are stopped in every way while they work, and then an account of every message:

    chaos.py [PROGRAM...] [--messages N] [--stops N] [--seed N]

Prints a row for each program: those of docs/queues.md. Without a PROGRAM: all, and the controls, which are what the
examples of the clients do.

A consumer prints "done ID" when it has processed a message, before it settles it. The files it prints to are the account:
a message that no line names, after the broker has no more to deliver, is lost; one that two lines name was doubled.
"""

import argparse
import contextlib
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

BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()
GUARD = 60  # seconds without progress that end a run
GRACE, STOP_TIMEOUT = 5, 3  # seconds
SLACK = 5  # for a busy machine
FROZEN = 2  # seconds that the broker stands still in a drain
# How often of 20: what happens to a consumer, or to the broker while a consumer is stopped.
PLAN = {"SIGTERM": 6, "SIGTERM twice": 3, "SIGKILL": 3, "quiet and resume": 3, "broker restarted": 1, "broker killed": 1,
        "broker frozen": 3}
OF_THE_BROKER = {"broker restarted", "broker killed", "broker frozen"}
MAY_DOUBLE = OF_THE_BROKER | {"SIGKILL"}


def eventually(holds, limit=GUARD):
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True


# ---- brokers: a private one each -------------------------------------------------------------------------------------


class Rabbit:
    programs = ("rabbitmq-server",)

    def __init__(self, queue):
        from rabbitmq import RabbitMQ

        self.queue, self.server = queue, RabbitMQ()
        self.server.start()
        self.tool("declare", queue, "quorum")  # a classic one forgets the last ACKs when the broker is killed

    def tool(self, *arguments, lines=""):
        return subprocess.run([BUILD / "amqp_tool", self.server.url, *arguments], input=lines, text=True, check=True,
                              stdout=subprocess.PIPE, timeout=GUARD).stdout

    def publish(self, bodies):
        self.tool("publish", self.queue, lines="".join(body + "\n" for body in bodies))

    def left(self):
        return int(self.tool("count", self.queue))

    def arguments(self):
        return [self.server.url, self.queue]

    def variables(self):
        return {"OJS_URL": self.server.url, "OJS_QUEUES": self.queue}


class Redis:
    programs = ("redis-server", "redis-cli")

    def __init__(self, queue):
        from redis_server import RedisServer

        self.queue, self.server = queue, RedisServer()
        self.server.start()

    def publish(self, bodies):
        self.server.publish(self.queue, bodies)

    def left(self):
        return self.server.left(self.queue, "ojs")

    def arguments(self):
        return [f"127.0.0.1:{self.server.port}", self.queue]

    def variables(self):
        return {"OJS_URL": f"redis://127.0.0.1:{self.server.port}", "OJS_QUEUES": self.queue}


class Kafka:
    programs = ()

    def __init__(self, queue):
        from kafka import KafkaMock

        self.queue, self.server = queue, KafkaMock()
        self.server.start()

    def publish(self, bodies):
        self.server.publish(self.queue, bodies)

    def left(self):
        return self.server.left(self.queue, "ojs")

    def arguments(self):
        return [self.server.brokers, self.queue, "ojs"]

    def variables(self):
        return {}


@dataclass
class Consumer:
    program: str
    broker: type
    arguments: tuple = None  # None: none, the environment says it all; else those after the broker's
    processes: int = 2
    slots: int = 4  # messages that one process works on
    unsettled: int = 4  # that it has done or works on, and the broker may deliver again after SIGKILL
    is_control: bool = False
    leaves_out: frozenset = frozenset()


IN_MEMORY = frozenset({"broker restarted", "broker killed"})  # what a broker that keeps nothing cannot do
CONSUMERS = {
    "amqp_worker": Consumer("amqp_worker", Rabbit),
    "amqp_loop": Consumer("amqp_loop", Rabbit, ()),
    "redis_streams_worker": Consumer("redis_streams_worker", Redis),
    "redis_streams_loop": Consumer("redis_streams_loop", Redis, ()),
    # Alone: the mock, unlike Kafka, refuses all commits for five seconds after a member joins or leaves.
    "kafka_loop": Consumer("kafka_loop", Kafka, (), 1, 4, 500, leaves_out=IN_MEMORY),
    "amqp_control": Consumer("amqp_control", Rabbit, (), 8, 1, 1, True),
    "amqp_control ack": Consumer("amqp_control", Rabbit, ("ack",), 8, 1, 1, True),
    "redis_streams_control": Consumer("redis_streams_control", Redis, (), 8, 1, 1, True),
    "kafka_control": Consumer("kafka_control", Kafka, (), 1, 4, 500, True, IN_MEMORY),
}


def end(server):
    """For good, with its port mapper and its data."""
    getattr(server, "close", server.stop)()


def missing(consumer):
    """What is not installed; empty: nothing."""
    absent = [each for each in consumer.broker.programs
              if not shutil.which(each, path=f"{os.environ.get('PATH', '')}:/usr/sbin")]
    if not (BUILD / consumer.program).exists():
        absent.append(consumer.program)
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

    def row(self, title):
        statuses = ", ".join(f"{status} ({count})" for status, count in sorted(self.statuses.items()))
        return (f"| {title} | {self.messages} | {sum(self.events.values())} | {self.lost} | {self.doubled} | {statuses} | "
                f"{self.max_stop:.1f} s |")


class Run(contextlib.ExitStack):
    def __init__(self, consumer, messages, stops, seed):
        super().__init__()
        self.consumer, self.messages, self.choose = consumer, messages, random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-queues-"))
        self.broker = consumer.broker("work")
        self.callback(end, self.broker.server)
        self.plan = self.plan_of(stops)
        self.outcome = Outcome(messages=messages)
        self.started, self.published = 0, 0
        self.running = [self.start() for _ in range(consumer.processes)]

    def plan_of(self, stops):
        kinds = [kind for kind, count in PLAN.items() for _ in range(count) if kind not in self.consumer.leaves_out]
        self.choose.shuffle(kinds)
        return (kinds * (stops // len(kinds) + 1))[:stops]

    def start(self):
        command = [BUILD / self.consumer.program]
        if self.consumer.arguments is not None:
            command += [*self.broker.arguments(), *self.consumer.arguments]
        variables = {"OJS_SHUTDOWN_GRACE_PERIOD": f"{GRACE}s", "OJS_STOP_TIMEOUT": f"{STOP_TIMEOUT}s",
                     "OJS_CONCURRENCY": str(self.consumer.slots), "OJS_VISIBILITY_TIMEOUT": "5s",
                     "OJS_HEARTBEAT_INTERVAL": "1s", "OJS_POLL_INTERVAL": "100ms", "OJS_SIGNAL_DEBOUNCE": "1ms",
                     **self.broker.variables()}
        self.started += 1
        process = Process(command, variables, self.folder, self.started)
        self.callback(process.process.wait)
        self.callback(process.process.kill)
        return process

    def done(self):
        lines = []
        for each in self.folder.glob("account-*"):
            lines += each.read_text().splitlines()
        return Counter(line.split()[1] for line in lines if line.startswith("done "))

    def is_done(self, count):
        return len(self.done()) >= count

    def milliseconds(self):
        """Of work. Some take so long that a second SIGTERM finds them in progress."""
        return 300 if self.choose.randrange(100) == 0 else self.choose.randrange(1, 16)

    def publish(self, count):
        bodies = [f"m{self.published + i} {self.milliseconds()}" for i in range(count)]
        self.published += count
        self.broker.publish(bodies)

    def ends(self, process, begun):
        """Its exit status within the time that a stop may take."""
        limit = GRACE + STOP_TIMEOUT + SLACK
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
        if status not in expected and not self.consumer.is_control:
            self.outcome.faults.append(f"exit status {status}")

    def stop(self, kind):
        self.outcome.events[kind] += 1
        if kind in MAY_DOUBLE:
            processes = self.consumer.processes if kind in OF_THE_BROKER else 1
            self.outcome.may_double += processes * self.consumer.unsettled
        if kind == "quiet and resume":
            return self.rest()
        process = self.running.pop(0)
        if kind == "SIGKILL":
            process.signal(signal.SIGKILL)
            self.note(process.process.wait(), {-signal.SIGKILL})
        else:
            self.terminate(process, kind)
        self.running.append(self.start())

    def terminate(self, process, kind):
        server = self.broker.server
        if kind == "broker restarted":
            server.stop()
        elif kind == "broker killed":
            server.kill()
        begun = time.monotonic()
        process.signal(signal.SIGTERM)
        if kind == "SIGTERM twice":
            eventually(lambda: self.consumer.is_control or process.has_ended() or process.says('"draining"'))
            process.signal(signal.SIGTERM)  # none, if it has ended
        elif kind == "broker frozen":
            server.freeze()
            time.sleep(FROZEN)
            server.thaw()
        # A second SIGTERM that comes when all is done has its default effect: OJS_SIGNAL_DEBOUNCE is short here.
        second = {-signal.SIGTERM} if kind == "SIGTERM twice" else set()
        self.note(self.ends(process, begun), second | ({0, 75} if kind in OF_THE_BROKER else {0}))
        if kind in {"broker restarted", "broker killed"}:
            server.start()

    def rest(self):
        """All are quiet: what is published meanwhile waits."""
        for each in self.running:
            each.signal(signal.SIGTSTP)
        if not self.consumer.is_control:
            self.check_rest()
        for each in self.running:
            each.signal(signal.SIGCONT)

    def check_rest(self):
        def stands_still():
            before = sum(self.done().values())
            time.sleep(0.3)
            return sum(self.done().values()) == before

        if not eventually(stands_still, GUARD) or not stands_still():
            self.outcome.faults.append("messages were processed while quiet")

    def execute(self):
        batch = max(1, self.messages // (len(self.plan) + 1))
        for number, kind in enumerate(self.plan):
            self.publish(batch)
            # Stopped in the middle of its work. What a control has lost it never reaches.
            eventually(lambda: self.is_done(number * batch + batch // 4), 3 if self.consumer.is_control else GUARD)
            self.stop(kind)
        self.publish(self.messages - self.published)
        self.finish()
        return self.outcome

    def finish(self):
        count, moved = -1, time.monotonic()
        while count < self.messages and time.monotonic() - moved < (10 if self.consumer.is_control else GUARD):
            now = len(self.done())
            count, moved = (now, time.monotonic()) if now != count else (count, moved)
            time.sleep(0.05)
        # What was done, but not settled, comes again.
        eventually(lambda: self.broker.left() == 0, 10 if self.consumer.is_control else GUARD)
        for each in self.running:
            begun = time.monotonic()
            each.signal(signal.SIGTERM)
            self.note(self.ends(each, begun), {0})
        done = self.done()
        self.outcome.lost = self.messages - len(done)
        self.outcome.doubled = sum(done.values()) - len(done)
        self.outcome.left = self.broker.left()
        self.judge()

    def judge(self):
        out = self.outcome
        if out.lost != 0:
            out.faults.append(f"{out.lost} messages were lost")
        if out.doubled > out.may_double:
            out.faults.append(f"{out.doubled} messages were doubled; {out.may_double} may be")
        if out.left != 0:
            out.faults.append(f"{out.left} messages were left at the broker")


HEAD = "| program | messages | stops | lost | doubled | exit statuses | longest stop |\n|---|---|---|---|---|---|---|"


def run(title, messages, stops, seed):
    consumer = CONSUMERS[title]
    with Run(consumer, messages, stops, seed) as one:
        outcome = one.execute()
    if outcome.faults and not consumer.is_control:
        print(f"# {title}: see {one.folder}", file=sys.stderr)
    else:
        shutil.rmtree(one.folder)
    return outcome


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(CONSUMERS))
    for name, default in (("messages", 10000), ("stops", 20), ("seed", random.randrange(1 << 30))):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    for unknown in set(given.programs) - set(CONSUMERS):
        options.error(f"no program {unknown}: {', '.join(CONSUMERS)}")
    print(f"seed {given.seed}\n\n{HEAD}")
    faults = 0
    for title in given.programs or CONSUMERS:
        absent = missing(CONSUMERS[title])
        if absent:
            print(f"| {title} | skipped: {absent} is missing |")
            continue
        outcome = run(title, given.messages, given.stops, given.seed)
        print(outcome.row(title), flush=True)
        for fault in [] if CONSUMERS[title].is_control else outcome.faults:
            faults += 1
            print(f"FAULT: {title}: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
