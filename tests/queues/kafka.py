"""Kafka for a test: librdkafka's mock cluster in this process, or a real broker in a temporary folder."""

import ctypes
import socket
import subprocess
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from server import Server  # which makes programs importable
from programs import BUILD

PRODUCER, CONSUMER, COPY = 0, 1, 2
MILLISECONDS = 20_000  # that a call may take
LIBRARIES = BUILD / "kafka/jars"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>ojs</groupId><artifactId>kafka</artifactId><version>1</version><dependencies><dependency><groupId>org.apache.kafka
</groupId><artifactId>kafka_2.13</artifactId><version>4.1.1</version></dependency></dependencies></project>"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{0.controller}
listeners=PLAINTEXT://127.0.0.1:{0.port},CONTROLLER://127.0.0.1:{0.controller}
controller.listener.names=CONTROLLER
log.dirs={0.folder}/data
num.partitions={0.partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4"""


class Partition(ctypes.Structure):
    _fields_ = [("topic", c_char_p), ("partition", c_int32), ("offset", c_int64), ("metadata", c_void_p),
                ("metadata_size", c_size_t), ("opaque", c_void_p), ("error", c_int), ("private", c_void_p)]


class Partitions(ctypes.Structure):
    _fields_ = [("count", c_int), ("size", c_int), ("all", POINTER(Partition))]


class Group(ctypes.Structure):
    _fields_ = [("broker", c_int32), ("host", c_char_p), ("port", c_int), ("name", c_char_p), ("error", c_int), ("state", c_char_p),
                ("protocol_type", c_char_p), ("protocol", c_char_p), ("members", c_void_p), ("member_count", c_int)]


class Groups(ctypes.Structure):
    _fields_ = [("all", POINTER(Group)), ("count", c_int)]


class Client:
    """Of librdkafka."""

    def __init__(self, kind, brokers, **settings):
        self.library = ctypes.CDLL("librdkafka.so.1")
        settings = {"bootstrap.servers": brokers, "log_level": "0", **settings}
        why, conf = ctypes.create_string_buffer(512), self.call("conf_new", returns=c_void_p)
        for name, value in settings.items():
            assert self.call("conf_set", conf, name, value, why, 512) == 0, why.value
        self.handle = self.call("new", kind, conf, why, 512, returns=c_void_p)
        assert self.handle, why.value

    def call(self, name, *arguments, returns=c_int):
        function = getattr(self.library, "rd_kafka_" + name)
        function.restype = returns
        found = function(*(each.encode() if isinstance(each, str) else each for each in arguments))
        return c_void_p(found) if returns is c_void_p and found else found

    def produce(self, topic, bodies, partitions):
        to = self.call("topic_new", self.handle, topic, None, returns=c_void_p)
        for number, body in enumerate(bodies):
            assert self.call("produce", to, number % partitions, COPY, body, c_size_t(len(body)), None, c_size_t(0), None) == 0
            self.call("poll", self.handle, 0)
        assert self.call("flush", self.handle, MILLISECONDS) == 0

    def end(self, topic, partition):
        first, end = c_int64(), c_int64()
        assert self.call("query_watermark_offsets", self.handle, topic, partition, byref(first), byref(end), MILLISECONDS) == 0
        return end.value

    def committed(self, topic, partitions):
        listed = self.call("topic_partition_list_new", partitions, returns=POINTER(Partitions))
        for number in range(partitions):
            self.call("topic_partition_list_add", listed, topic, number, returns=c_void_p)
        assert self.call("committed", self.handle, listed, MILLISECONDS) == 0
        return [max(listed.contents.all[number].offset, 0) for number in range(partitions)]  # none: negative

    def members(self, group):
        """How many the group has."""
        listed = POINTER(Groups)()
        assert self.call("list_groups", self.handle, group, byref(listed), MILLISECONDS) == 0
        return sum(listed.contents.all[number].member_count for number in range(listed.contents.count))


class Kafka:
    partitions = 6

    def connect(self, brokers):
        self.brokers = brokers
        self.producer = Client(PRODUCER, brokers, **{"enable.idempotence": "true"})
        self.consumer = Client(CONSUMER, brokers, **{"group.id": "ojs"})

    def publish(self, topic, bodies):
        """Spreads them over the partitions."""
        self.producer.produce(topic, bodies, self.partitions)

    def left(self, topic):
        """How many messages are not committed."""
        ends = [self.producer.end(topic, number) for number in range(self.partitions)]
        return sum(ends) - sum(self.consumer.committed(topic, self.partitions))

    def arguments(self, topic):
        return [self.brokers, topic, "ojs"]


class KafkaMock(Kafka):
    partitions = 1

    def start(self):
        self.owner = Client(PRODUCER, "none.invalid")
        mock = self.owner.call("mock_cluster_new", self.owner.handle, 1, returns=c_void_p)
        for topic in ("work", "work.dead"):
            assert self.owner.call("mock_topic_create", mock, topic, self.partitions, 1) == 0
        self.connect(self.owner.call("mock_cluster_bootstraps", mock, returns=c_char_p).decode())


class KafkaServer(Server, Kafka):
    """Kafka by Maven: one node, which creates topics that it does not have."""

    programs = ("java", "mvn")

    def __init__(self):
        super().__init__(ports=2)
        self.controller = self.port + 1

    @staticmethod
    def install():
        """What cannot be installed."""
        if LIBRARIES.exists():
            return []
        LIBRARIES.parent.mkdir(exist_ok=True)
        (LIBRARIES.parent / "pom.xml").write_text(POM)
        maven = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars.new"]
        if subprocess.run(maven, cwd=LIBRARIES.parent, stdin=subprocess.DEVNULL).returncode != 0:
            return ["Maven's repository"]
        (LIBRARIES.parent / "jars.new").rename(LIBRARIES)
        return []

    def java(self, program, *arguments):
        return ["java", "-Xmx512m", "-cp", f"{LIBRARIES}/*", program, *arguments]

    def command(self):
        return self.java("kafka.Kafka", "settings")

    def start(self):
        if not (self.folder / "settings").exists():
            (self.folder / "settings").write_text(SETTINGS.format(self))
            form = self.java("kafka.tools.StorageTool", "format", "-t", "aHIewI19Rtav6R9-KLW9MA", "-c", "settings")
            done = subprocess.run(form, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, done.stdout
            self.connect(f"127.0.0.1:{self.port}")
        super().start()

    def answers(self):
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0
