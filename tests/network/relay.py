"""A relay in front of a backend, and all that a network does to requests: they are delayed, cut, answered by someone else,
or swallowed, by one seed. relay.log has every request with what became of it."""

import asyncio
import random
import re
import socket
import struct
import time

# What a proxy, a login page or a load balancer says in the place of the backend.
ANSWERS = [
    (404, "Not Found", "text/plain", "default backend - 404", ""),
    (404, "Not Found", "text/html", "<html><h1>404 Not Found</h1></html>", ""),
    (502, "Bad Gateway", "text/html", "<html><h1>502 Bad Gateway</h1></html>", ""),
    (200, "OK", "text/html", "<html><form>Please log in</form></html>", ""),
    (409, "Conflict", "text/plain", "conflict", ""),
    (413, "Content Too Large", "text/plain", "too large", ""),
    (503, "Service Unavailable", "text/plain", "try later", "Retry-After: 1\r\n"),
    (301, "Moved Permanently", "text/html", "", "Location: https://login.invalid/\r\n"),
]
# Of a thousand requests. "lost" and "cut" are carried out; "stall" too, but never answered; "swallow" is neither.
FAULTS = {"delay": 400, "reset": 8, "close": 8, "lost": 12, "cut": 12, "stall": 5, "swallow": 5, "half": 6, "drip": 6, "answer": 40}


def answer_bytes(answer):
    status, reason, kind, body, extra = answer
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return (head + body).encode()


async def read_message(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


class Entry:
    """A request: `verdict` is the backend's status if all of its response was sent on."""

    def __init__(self, message, connection):
        head, _, body = message.partition(b"\r\n\r\n")
        self.at, self.connection, self.fault = time.monotonic(), connection, ""
        self.verdict = self.ended = self.given_up = None
        self.op = head.split(b" ", 2)[1].decode().rsplit("/", 1)[-1]
        self.worker = (re.search(rb"(?i)\r\nx-ojs-worker-id: *(\S+)", head) or [b"", b""])[1].decode()
        self.job = (re.search(rb'"job_id": *"([^"]*)"', body) or [b"", b""])[1].decode()
        self.job = self.job or self.op  # INFO names it in its path
        self.forgotten, self.reused = connection.forgotten, connection.requests > 0


    def __str__(self):
        ended = f"{self.ended:.6f}" if self.ended else "-"
        return f"{self.at:.6f} {ended} {self.worker} {self.op} {self.job} {self.connection.number} {self.fault} {self.verdict}"


class Connection:
    def __init__(self, number):
        self.number, self.requests, self.forgotten, self.worker = number, 0, None, ""


class Relay:
    def __init__(self, port, seed):
        self.backend, self.seed, self.log, self.open, self.tasks, self.made = port, seed, [], set(), [], 0
        self.calm, self.away, self.flowing = False, None, asyncio.Event()
        self.before_fetch = {}  # by worker: what to do when its next FETCH arrives
        self.flowing.set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def end_of_all(self):
        """Of all connections, once the workers have ended."""
        self.server.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def forget(self, event, workers):
        """As a NAT or a node that is lost: what is open swallows all bytes from now on."""
        for each in [each for each in self.open if each.worker in workers and each.forgotten is None]:
            each.forgotten = event

    async def serve(self, reader, writer):
        self.made += 1
        connection = Connection(self.made)
        self.open.add(connection)
        self.tasks.append(asyncio.current_task())
        upstream = None
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.backend)
            while await self.pass_on(connection, reader, writer, *upstream):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open.discard(connection)
            for each in [writer, *(upstream or [])[1:]]:
                each.close()

    async def pass_on(self, connection, reader, writer, backend_reader, backend_writer):
        """One request; false where the connection is over."""
        message = await read_message(reader)
        entry = Entry(message, connection)
        self.log.append(entry)
        connection.worker = entry.worker or connection.worker
        connection.requests += 1
        if entry.op == "fetch" and entry.worker in self.before_fetch:
            self.before_fetch.pop(entry.worker)()
        chosen = random.Random(f"{self.seed} {connection.number} {connection.requests}")
        fault = "none"
        if not self.calm:
            fault = chosen.choices(["none", *FAULTS], [1000 - sum(FAULTS.values()), *FAULTS.values()])[0]
        await self.flowing.wait()
        entry.fault = "forgotten" if connection.forgotten is not None else "away" if self.away else fault
        if entry.fault in ("forgotten", "swallow"):
            return await self.swallow(entry, reader)
        if entry.fault == "away" or (fault == "answer" and chosen.random() < 0.7):
            return await self.reply(entry, writer, answer_bytes(self.away or chosen.choice(ANSWERS)))
        if fault == "delay":
            await asyncio.sleep(chosen.uniform(0, 0.05))
        if fault in ("reset", "close"):
            return self.end(writer, fault == "reset")
        if fault == "half":
            writer.write_eof()
        backend_writer.write(message)
        response = await read_message(backend_reader)
        await self.flowing.wait()
        if connection.forgotten is not None or fault in ("stall", "half"):
            entry.fault = entry.fault if connection.forgotten is None else "forgotten"
            return await self.swallow(entry, reader)
        if fault in ("lost", "cut"):
            writer.write(response[: chosen.randrange(1, len(response)) if fault == "cut" else 0])
            await writer.drain()
            return self.end(writer, chosen.random() < 0.5)
        if fault == "answer":
            return await self.reply(entry, writer, answer_bytes(chosen.choice(ANSWERS)))
        verdict = int(response.split(b" ", 2)[1])
        if fault == "drip":
            for at in range(0, len(response), 40):
                writer.write(response[at : at + 40])
                await writer.drain()
            response = b""
        entry.verdict = verdict
        return await self.reply(entry, writer, response)

    async def swallow(self, entry, reader):
        try:
            await reader.read()
        finally:
            entry.given_up = time.monotonic()
        return False

    async def reply(self, entry, writer, data):
        writer.write(data)
        await writer.drain()
        entry.ended = time.monotonic()
        return True

    @staticmethod
    def end(writer, by_reset):
        if by_reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return False
