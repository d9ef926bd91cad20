"""A relay between libpq and its server, on a Unix socket, that knows which statement an answer belongs to: it can end the
connection when the server has done a statement and the client has not heard of it."""

import os
import shutil
import socket
import struct
import tempfile
import threading
from functools import partial
from pathlib import Path

from programs import Peer, both_ways

READY = None  # stands for the server's ReadyForQuery


class Statements:
    """What a client has sent and not yet been answered, read from its messages."""

    def __init__(self):
        self.lock = threading.Lock()  # its own: an answer that is held up holds up no other connection's words
        self.buffer, self.started = b"", False
        self.prepared, self.portals, self.waiting = {}, {}, []

    def feed(self, data):
        self.buffer += data
        while message := self.next():
            self.note(*message)

    def next(self):
        head = 1 if self.started else 0
        if len(self.buffer) < head + 4:
            return None
        length = head + struct.unpack("!I", self.buffer[head:head + 4])[0]
        if len(self.buffer) < length:
            return None
        kind, body = self.buffer[:head], self.buffer[head + 4:length]
        self.buffer, self.started = self.buffer[length:], True
        return kind, body

    def note(self, kind, body):
        strings = body.split(b"\0")
        if kind == b"Q":
            self.waiting += [strings[0].decode(errors="replace"), READY]
        elif kind == b"P":
            self.prepared[strings[0]] = strings[1].decode(errors="replace")
        elif kind == b"B":
            self.portals[strings[0]] = self.prepared.get(strings[1], "")
        elif kind == b"E":
            self.waiting.append(self.portals.get(strings[0], ""))
        elif kind == b"S":
            self.waiting.append(READY)

    def answered(self):
        """The statement whose CommandComplete this is. A simple query of several statements is answered several times."""
        statement = self.waiting[0] if self.waiting and self.waiting[0] is not READY else ""
        if len(self.waiting) > 1 and self.waiting[1] is not READY:
            self.waiting.pop(0)
        return statement

    def ready(self):
        """The server has come to the end of a query, or of what stands before a Sync."""
        while self.waiting and self.waiting.pop(0) is not READY:
            pass


class Relay(Peer):
    """url: a server's. cut(statement, tag): whether to end the connection in place of forwarding this CommandComplete; asked
    one at a time. What the server answers is withheld from there on until it says that it is ready: by then the statement is
    committed."""

    def __init__(self, test, server, cut=lambda statement, tag: False):
        self.server, self.cut = server, cut
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-relay-"))
        test.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o755)
        self.lock, self.cuts = threading.Lock(), []
        super().__init__(test, self.relay, socket.create_server(str(self.folder / f".s.PGSQL.{server.port}"),
                                                                family=socket.AF_UNIX, backlog=64))

    def url(self, database):
        return self.server.url(dbname=database.name, host=self.folder)

    def relay(self, client):
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self.server.folder / f".s.PGSQL.{self.server.port}"))
            self.connections.append(server)
            statements = Statements()
            both_ways(client, server, partial(self.to_server, statements), partial(self.to_client, statements))

    def to_server(self, statements, client, server):
        while data := client.recv(65536):
            with statements.lock:
                statements.feed(data)
            server.sendall(data)

    def to_client(self, statements, server, client):
        buffer, cutting = b"", None
        while data := server.recv(65536):
            buffer += data
            forward = b""
            while len(buffer) >= 5:
                length = 1 + struct.unpack("!I", buffer[1:5])[0]
                if len(buffer) < length:
                    break
                message, buffer = buffer[:length], buffer[length:]
                if message[:1] == b"C" and cutting is None:
                    cutting = self.decide(statements, message[5:-1].decode())
                if message[:1] == b"Z":
                    with statements.lock:
                        statements.ready()
                    if cutting is not None:
                        self.cuts.append(cutting)
                        client.sendall(forward)
                        return
                if cutting is None:
                    forward += message
            client.sendall(forward)

    def decide(self, statements, tag):
        with statements.lock:
            statement = statements.answered()
        with self.lock:
            return (statement, tag) if self.cut(statement, tag) else None
