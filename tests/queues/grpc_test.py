"""examples/grpc_drain.cpp: calls and the health service through a stop."""

import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from programs import BUILD, Program, eventually  # noqa: E402

# The status code, and a grpc.health.v1.HealthCheckResponse with status 1 or 2.
SERVING, NOT_SERVING = "0 0801", "0 0802"


class GrpcDrain(unittest.TestCase):
    def call(self, method, text=""):
        command = [BUILD / "grpc_client", self.address, "call", method, text]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()

    def health(self):
        """An empty HealthCheckRequest is about the whole server."""
        return self.call("/grpc.health.v1.Health/Check")

    def test_sigterm_under_load_fails_no_call(self):
        server = Program(self, BUILD / "grpc_drain", "127.0.0.1:0", "1s", OJS_SIGNAL_DEBOUNCE="0")
        self.address = server.prints(r"listening on (127.0.0.1:\d+)")[1]
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        server.process.send_signal(signal.SIGTSTP)
        self.assertTrue(eventually(lambda: self.health() == NOT_SERVING))
        self.assertEqual(self.call("/demo/Work", "1"), "0 31")
        server.process.send_signal(signal.SIGCONT)
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        load = Program(self, BUILD / "grpc_client", self.address, "load", 8, 300)
        load.prints("loaded")
        server.process.send_signal(signal.SIGTERM)
        server.prints('"phase":"draining"')
        self.assertEqual(self.health(), NOT_SERVING)
        ended = load.prints(r"ok (\d+) refused (\d+) failed (\d+)")
        self.assertGreater(int(ended[1]), 8)
        self.assertEqual((ended[2], ended[3]), ("8", "0"), load.said())
        self.assertEqual(server.process.wait(20), 0, server.said())


if __name__ == "__main__":
    unittest.main()
