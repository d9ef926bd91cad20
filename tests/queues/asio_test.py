"""examples/asio_drain.cpp: requests and connections through a quiet and a stop."""

import http.client
import signal
import socket
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from programs import BUILD, Program, eventually  # noqa: E402


class AsioDrain(unittest.TestCase):
    def send(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        return connection

    def in_flight(self, count):
        """The loop counts the listener, too."""
        self.server.process.send_signal(signal.SIGTTIN)
        return f'"active_items":{count + 1}' in self.server.said()

    def refused(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) != 0

    def test_sigterm_answers_requests_in_flight_and_refuses_new_ones(self):
        self.server = Program(self, BUILD / "asio_drain", OJS_SIGNAL_DEBOUNCE="0")
        self.port = int(self.server.prints(r"listening on 127.0.0.1:(\d+)")[1])
        self.server.process.send_signal(signal.SIGTSTP)
        self.server.prints('"phase":"quiet"')
        idle = self.send("/0s")  # waits in the listener's queue
        self.server.process.send_signal(signal.SIGCONT)
        response = idle.getresponse()
        self.assertEqual((response.status, response.read()), (200, b"OK\n"))
        clients = [self.send("/3s") for _ in range(20)]
        self.assertTrue(eventually(lambda: self.in_flight(20)))
        self.server.process.send_signal(signal.SIGTERM)
        self.assertTrue(eventually(self.refused))
        self.assertEqual(idle.sock.recv(1), b"")  # closed, while the others still wait
        self.assertIsNone(self.server.process.poll())
        for client in clients:
            response = client.getresponse()
            self.assertEqual((response.status, response.getheader("Connection")), (200, "close"))
            self.assertEqual(response.read(), b"OK\n")
        self.assertEqual(self.server.process.wait(20), 0, self.server.said())


if __name__ == "__main__":
    unittest.main()
