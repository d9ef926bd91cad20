"""examples/asio_drain.cpp: requests, connections and signals."""

import http.client
import signal
import socket
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "adapters"))
from programs import BUILD, Program, eventually  # noqa: E402


class AsioDrain(unittest.TestCase):
    def serve(self, **variables):
        self.server = Program(self, BUILD / "asio_drain", OJS_SIGNAL_DEBOUNCE="0", **variables)
        self.port = int(self.server.prints(r"listening on 127.0.0.1:(\d+)")[1])

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(connection.close)
        return connection

    def send(self, path):
        connection = self.connect()
        connection.request("GET", path)
        return connection

    def signal(self, number):
        self.server.process.send_signal(number)

    def in_flight(self, count):
        """The loop counts the listener, too."""
        self.signal(signal.SIGTTIN)
        return f'"active_items":{count + 1}' in self.server.said()

    def ends(self, status):
        self.assertEqual(self.server.process.wait(20), status, self.server.said())

    def refused(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) != 0

    def get(self, connection, path="/0s"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response

    def test_keep_alive_serves_several_requests(self):
        self.serve()
        connection = self.connect()
        for _ in range(3):
            response = self.get(connection)
            self.assertEqual((response.status, response.getheader("Connection")), (200, None))
        self.assertEqual(self.get(connection, "/x").status, 400)
        self.signal(signal.SIGTERM)
        self.ends(0)

    def test_sigterm_answers_requests_in_flight_and_refuses_new_ones(self):
        self.serve()
        clients = [self.send("/3s") for _ in range(20)]
        idle = self.connect()
        self.get(idle)
        self.assertTrue(eventually(lambda: self.in_flight(20)))
        self.signal(signal.SIGTERM)
        self.assertTrue(eventually(self.refused))
        self.assertEqual(idle.sock.recv(1), b"")  # closed, while the others still wait
        self.assertIsNone(self.server.process.poll())
        for client in clients:
            response = client.getresponse()
            self.assertEqual((response.status, response.getheader("Connection")), (200, "close"))
            self.assertEqual(response.read(), b"OK\n")
        self.ends(0)

    def test_sigterm_completes_a_request_of_which_a_part_has_arrived(self):
        self.serve()
        client = socket.create_connection(("127.0.0.1", self.port))
        self.addCleanup(client.close)
        client.sendall(b"GET /0s HT")
        self.assertTrue(eventually(lambda: self.in_flight(1)))
        self.signal(signal.SIGTERM)
        self.assertTrue(eventually(self.refused))
        client.sendall(b"TP/1.1\r\nHost: x\r\n\r\n")
        self.assertIn(b"200 OK", client.recv(1000))
        self.ends(0)

    def test_sigterm_while_frozen_answers_what_waits_in_the_queue(self):
        self.serve()
        self.signal(signal.SIGSTOP)
        clients = [self.send("/0s") for _ in range(20)]
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        self.assertEqual([client.getresponse().status for client in clients], [200] * 20)
        self.ends(0)

    def test_second_sigterm_interrupts_requests(self):
        self.serve()
        client = self.send("/1m")
        self.assertTrue(eventually(lambda: self.in_flight(1)))
        self.signal(signal.SIGTERM)
        self.server.prints('"phase":"draining"')
        self.signal(signal.SIGTERM)
        response = client.getresponse()
        self.assertEqual((response.status, response.getheader("Connection")), (503, "close"))
        self.ends(0)

    def test_a_request_that_never_ends_does_not_hold_up_the_stop(self):
        self.serve(OJS_SHUTDOWN_GRACE_PERIOD="500ms", OJS_STOP_TIMEOUT="1s")
        self.send("/stuck")
        self.assertTrue(eventually(lambda: self.in_flight(1)))
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.ends(75)
        self.assertLess(time.monotonic() - began, 5)

    def test_quiet_leaves_connections_in_the_queue_until_sigcont(self):
        self.serve()
        open_before = self.connect()
        self.get(open_before)
        self.signal(signal.SIGTSTP)
        self.server.prints('"phase":"quiet"')
        waiting = self.send("/0s")
        self.assertEqual(self.get(open_before).getheader("Connection"), "close")
        self.assertFalse(self.readable(waiting.sock))
        self.signal(signal.SIGCONT)
        self.assertEqual(waiting.getresponse().status, 200)
        self.signal(signal.SIGTERM)
        self.ends(0)

    def readable(self, client):
        client.setblocking(False)
        try:
            return bool(client.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            client.settimeout(20)


if __name__ == "__main__":
    unittest.main()
