"""Ports for private brokers."""

import random
import socket


def free_ports(count=1):
    """The first of `count` free ports in a row, on loopback; not from the range that outgoing connections use. Random, so
    that tests side by side choose others."""
    for _ in range(1000):
        first = random.randrange(20000, 30000 - count)
        if all(is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError("no port is free")


def is_free(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
