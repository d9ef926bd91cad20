"""examples/grpc_drain.cpp: calls, streams, the health service and signals."""

import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "adapters"))
from programs import BUILD, Program, eventually  # noqa: E402

# The status code, and a grpc.health.v1.HealthCheckResponse with status 1 or 2.
SERVING, NOT_SERVING = "0 0801", "0 0802"


class GrpcDrain(unittest.TestCase):
    def serve(self, lame_duck="1s", **variables):
        self.server = Program(self, BUILD / "grpc_drain", "127.0.0.1:0", lame_duck, OJS_SIGNAL_DEBOUNCE="0",
                              **variables)
        self.address = self.server.prints(r"listening on (127.0.0.1:\d+)")[1]
        self.server.prints('"message":"loop started"')

    def client(self, *command):
        return Program(self, BUILD / "grpc_client", self.address, *command)

    def call(self, method, text=""):
        command = [BUILD / "grpc_client", self.address, "call", method, text]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()

    def health(self):
        """An empty HealthCheckRequest is about the whole server."""
        return self.call("/grpc.health.v1.Health/Check")

    def in_flight(self, method):
        self.server.process.send_signal(signal.SIGTTIN)
        return f'"item":"{method}"' in self.server.said()

    def signal(self, number):
        self.server.process.send_signal(number)

    def ends(self, status):
        self.assertEqual(self.server.process.wait(20), status, self.server.said())

    def test_calls_and_health(self):
        self.serve(lame_duck="0s")
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        self.assertEqual(self.call("/demo/Work", "1"), "0 31")
        self.assertEqual(self.call("/demo/Other"), "12 /demo/Other")
        self.signal(signal.SIGTERM)
        self.ends(0)

    def test_sigterm_under_load_fails_no_call(self):
        self.serve()
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        stream = self.client("watch")
        stream.prints("open")
        load = self.client("load", 8, 300)
        load.prints("loaded")
        self.signal(signal.SIGTERM)
        self.server.prints('"phase":"draining"')
        self.assertEqual(self.health(), NOT_SERVING)
        stream.prints("ended 14 the server stops")
        ended = load.prints(r"ok (\d+) refused (\d+) failed (\d+)")
        self.assertGreater(int(ended[1]), 8)
        self.assertEqual((ended[2], ended[3]), ("8", "0"), load.said())
        self.ends(0)

    def test_a_call_longer_than_the_lame_duck_gets_its_response(self):
        self.serve(lame_duck="100ms")
        call = self.client("call", "/demo/Work", 1500)
        self.assertTrue(eventually(lambda: self.in_flight("/demo/Work")))
        self.signal(signal.SIGTERM)
        call.prints("0 31353030")
        self.ends(0)

    def test_second_sigterm_ends_calls(self):
        self.serve(lame_duck="1m")
        call = self.client("call", "/demo/Work", 60000)
        self.assertTrue(eventually(lambda: self.in_flight("/demo/Work")))
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.server.prints('"phase":"draining"')
        self.signal(signal.SIGTERM)
        call.prints("14 the server stops")
        self.ends(0)
        self.assertLess(time.monotonic() - began, 5)

    def test_a_call_that_never_ends_does_not_hold_up_the_stop(self):
        self.serve(lame_duck="100ms", OJS_SHUTDOWN_GRACE_PERIOD="500ms", OJS_STOP_TIMEOUT="1s")
        self.client("call", "/demo/Hang")
        self.assertTrue(eventually(lambda: self.in_flight("/demo/Hang")))
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.ends(75)
        self.assertLess(time.monotonic() - began, 5)
        unreported = self.server.prints('"message":"item has not ended in time".*')[0]
        self.assertIn('"item":"/demo/Hang"', unreported)

    def test_quiet_is_not_serving_until_sigcont(self):
        self.serve(lame_duck="0s")
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        self.signal(signal.SIGTSTP)
        self.assertTrue(eventually(lambda: self.health() == NOT_SERVING))
        self.assertEqual(self.call("/demo/Work", "1"), "0 31")
        self.signal(signal.SIGCONT)
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        self.signal(signal.SIGTERM)
        self.ends(0)


if __name__ == "__main__":
    unittest.main()
