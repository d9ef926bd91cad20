#!/usr/bin/env python3
"""ojs_tls.hpp against openssl s_server and Python's ssl. `make adapters-test` runs this. OJS_TEST_BUILD: the folder with
https_client, tls_worker and dev_backend; default build."""

import itertools
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from certificates import Authority

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from dev_backend import Backend  # noqa: E402
from programs import BUILD, GUARD, Peer, Program, eventually  # noqa: E402


def relay(test, port, change=lambda _, __, data: (data, True), tls=None):
    """Between a client and a server: change(from_server, offset, data) says what is sent in place of data, and whether
    anything does after it. tls: an ssl.SSLContext for the client's side."""

    def play(client):
        client = tls.wrap_socket(client, server_side=True) if tls else client
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            offsets, goes_on = {client: 0, server: 0}, True
            while goes_on:
                source = client if tls and client.pending() else select.select([client, server], [], [])[0][0]
                data = source.recv(65536)
                changed, goes_on = change(source is server, offsets[source], data) if data else (b"", False)
                offsets[source] += len(data)
                (client if source is server else server).sendall(changed)

    return Peer(test, play)


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.root = Authority(cls.folder, "root")
        cls.middle = Authority(cls.folder, "middle", by=cls.root)
        cls.stranger = Authority(cls.folder, "stranger")
        cls.good = cls.middle.issue("good")

    def s_server(self, pair=None, *flags, chain=None, **how):
        certificate, key = pair or self.good
        chain = chain or self.middle.certificate
        server = Program(self, "openssl", "s_server", "-accept", "127.0.0.1:0", "-www", "-cert", certificate, "-key", key,
                         "-cert_chain", chain, *flags, **how)
        return int(server.prints(r"ACCEPT \S+:(\d+)")[1])

    def server_context(self):
        """For a server in this process."""
        chain = self.folder / "chain.pem"
        chain.write_text(self.good[0].read_text() + self.middle.certificate.read_text())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, self.good[1])
        return context

    def ask(self, port, *flags, host="localhost"):
        done = subprocess.run([BUILD / "https_client", "--ca", self.root.certificate, *map(str, flags),
                               f"https://{host}:{port}"], capture_output=True, text=True, timeout=GUARD * 2)
        return done.stdout

    def mutual(self, version):
        return self.s_server(None, version, "-Verify", "3", "-CAfile", self.root.certificate, "-verify_return_error")

    def pair(self, name, by=None):
        certificate, key = (by or self.middle).issue(name)
        chain = self.folder / f"{name}-chain.pem"
        chain.write_text(certificate.read_text() + (by or self.middle).certificate.read_text())
        return "--certificate", chain, "--key", key

    def stepwise(self, port, ca, *flags, **variables):
        """Makes one request at a time, and says what came of it."""
        client = Program(self, BUILD / "https_client", "--ca", ca, "--stepwise", "yes", *flags,
                         f"https://localhost:{port}", stdin=subprocess.PIPE, **variables)
        self.addCleanup(client.process.stdin.close)
        lines = []

        def request():
            client.process.stdin.write(b"\n")
            client.process.stdin.flush()
            lines.append(None)
            said = client.prints(r"\A(?:.*\n){%d}(.*)\n" % (len(lines) - 1))[1]
            return said if said.startswith("error ") else re.search("(New|Reused), TLSv1", said)[1]

        return request

    def refused(self, port, why, *flags, **how):
        self.assertRegex(self.ask(port, *flags, **how), rf"\Aerror unreachable GET https://\S+:\d+/: handshake failed: TLS: {why}\n\Z")


class Certificates(Tls):
    def test_a_valid_certificate_is_accepted_by_name_and_by_address(self):
        port = self.s_server()
        for host in ("localhost", "127.0.0.1", "LOCALHOST"):
            self.assertRegex(self.ask(port, host=host), r"\Aok 200 ")
        self.assertRegex(self.ask(port, "--name", "localhost", host="127.0.0.1"), r"\Aok 200 ")

    def test_an_expired_foreign_or_untrusted_certificate_is_refused(self):
        own = (self.stranger.certificate, self.stranger.key)
        for why, pair, chain, host in (
            ("certificate has expired", self.middle.issue("expired", end="20210101000000Z"), None, "localhost"),
            ("hostname mismatch", self.middle.issue("other", "DNS:other.example"), None, "localhost"),
            ("hostname mismatch", self.middle.issue("localhost", extensions="unnamed"), None, "localhost"),  # by its common name
            ("IP address mismatch", self.middle.issue("address", "DNS:127.0.0.1"), None, "127.0.0.1"),
            ("self-signed certificate", own, self.stranger.certificate, "localhost"),
            ("unable to get local issuer certificate", self.good, self.root.certificate, "localhost"),
        ):
            with self.subTest(why, pair=pair):
                self.refused(self.s_server(pair, chain=chain), why, host=host)

    def test_a_revoked_certificate_or_authority_is_refused(self):
        lists = self.folder / "lists.pem"
        lists.write_text(self.root.revocations())  # without that of the authority below it nobody is believed
        self.refused(self.s_server(), "unable to get certificate CRL", "--crl", lists)
        gone = Authority(self.folder, "gone", by=self.root)
        of_gone, of_middle = gone.issue("of-gone"), self.middle.issue("of-middle")
        ports = [self.s_server(), self.s_server(of_middle), self.s_server(of_gone, chain=gone.certificate)]

        def answers():
            lists.write_text(self.root.revocations() + self.middle.revocations() + gone.revocations())
            return [self.ask(port, "--crl", lists).strip()[:90] for port in ports]

        self.assertEqual([each[:6] for each in answers()], ["ok 200"] * 3)
        self.middle.revoke(of_middle[0])
        self.root.revoke(gone.certificate)
        found = answers()
        self.assertEqual(found[0][:6], "ok 200")
        for each in found[1:]:
            self.assertTrue(each.endswith("TLS: certificate revoked"), each)

    def test_an_unusable_certificate_file_is_named_in_the_error(self):
        wrong = self.folder / "wrong.pem"
        wrong.write_text("no certificate\n")
        _, other_key = self.middle.issue("of-other-key")
        locked = self.folder / "locked.key"
        subprocess.run(["openssl", "ec", "-in", self.good[1], "-aes256", "-passout", "pass:secret", "-out", locked], check=True,
                       capture_output=True)
        for flags, why in (
            (("--ca", self.folder / "none.pem"), "none.pem: No such file or directory"),
            (("--ca", wrong), "wrong.pem: "),
            (("--crl", wrong), "wrong.pem: "),
            (("--certificate", wrong, "--key", self.good[1]), "wrong.pem: "),
            (("--certificate", self.good[0]), "an empty file name: "),
            (("--certificate", self.good[0], "--key", other_key), "key values mismatch"),
            (("--certificate", self.good[0], "--key", locked), "locked.key: "),
        ):
            with self.subTest(flags=flags):
                said = self.ask(1, *flags)
                self.assertRegex(said, r"\Aerror invalid_argument TLS cannot use ")
                self.assertIn(why, said)

    def test_a_client_sends_its_certificate_if_the_server_requests_one(self):
        for version, code in (("-tls1_2", "unreachable .*handshake failed: TLS: "), ("-tls1_3", "(disconnected|unreachable) .*TLS: ")):
            port = self.mutual(version)
            self.assertRegex(self.ask(port), rf"\Aerror {code}the server requires a client certificate \(certificate_file, key_file\)")
            pair = self.pair("client")
            self.assertRegex(self.ask(port, *pair), r"\Aok 200 ")
            pair = self.pair("unknown", by=self.stranger)
            self.assertRegex(self.ask(port, *pair), rf"\Aerror {code}the server refused the client certificate {pair[1]}: .*unknown ca")

    def test_a_renewed_client_certificate_is_used_once_its_key_is_renewed_too(self):
        for version in ("-tls1_2", "-tls1_3"):
            shown, other, bad = self.pair("shown"), self.pair("other"), self.pair("bad", by=self.stranger)
            request = self.stepwise(self.mutual(version), self.root.certificate, *shown)
            self.assertEqual([request(), request()], ["New", "Reused"])
            shutil.copy(other[1], shown[1])
            self.assertEqual(request(), "Reused")  # the previous pair, until the key is there
            shutil.copy(other[3], shown[3])
            self.assertEqual([request(), request()], ["New", "Reused"])
            shutil.copy(bad[1], shown[1]), shutil.copy(bad[3], shown[3])
            self.assertRegex(request(), f"the server refused the client certificate {shown[1]}: ")
            shutil.copy(other[3], shown[3])
            self.assertRegex(request(), rf"{shown[1]} \(an earlier .* cannot be used: {shown[3]}: key values mismatch\): ")
            shown[3].unlink()  # it may be in the middle of a replacement
            shutil.copy(other[1], shown[1])
            self.assertIn("the server refused the client certificate", request())
            shutil.copy(other[3], shown[3])
            self.assertEqual(request(), "New")


class Connections(Tls):
    def test_tls_versions_below_1_2_are_refused(self):
        for version in ("-tls1", "-tls1_1"):
            port = self.s_server(None, version, "-cipher", "ALL:@SECLEVEL=0")
            self.assertRegex(self.ask(port), r"\Aerror unreachable .*handshake failed: TLS: .*(version|protocol)")

    @unittest.skipUnless(shutil.which("faketime"), "no faketime")
    def test_no_session_is_resumed_after_a_certificate_of_the_chain_expired(self):
        # What it gives to the program that it starts. The file says how far the program's clock is ahead.
        printed = subprocess.run(["faketime", "-f", "+0", "env"], capture_output=True, text=True, check=True).stdout
        ahead = self.folder / "ahead"
        clock = {"LD_PRELOAD": re.search("^LD_PRELOAD=(.*)$", printed, re.MULTILINE)[1], "FAKETIME_TIMESTAMP_FILE": str(ahead),
                 "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
        # Within the two hours that OpenSSL itself keeps a session.
        end = {"end": time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + 3600))}
        short = Authority(self.folder, "short", by=self.root, **end)
        for version in ("-tls1_2", "-tls1_3"):
            for pair, chain in ((self.middle.issue("short-leaf", **end), None), (short.issue("of-short"), short.certificate)):
                ahead.write_text("+0")
                request = self.stepwise(self.s_server(pair, version, chain=chain), self.root.certificate, **clock)
                self.assertEqual([request(), request()], ["New", "Reused"])
                ahead.write_text("+61m")
                self.assertRegex(request(), r"\Aerror unreachable .*: handshake failed: TLS: certificate has expired\Z")

    def test_no_session_is_resumed_after_the_ca_file_changed(self):
        root, stranger = (each.certificate.read_text() for each in (self.root, self.stranger))
        for version in ("-tls1_2", "-tls1_3"):
            ca = self.folder / f"changing{version}.pem"
            ca.write_text(root)
            request = self.stepwise(self.s_server(None, version), ca)
            self.assertEqual([request(), request()], ["New", "Reused"])
            ca.write_text(stranger + root)
            self.assertEqual([request(), request()], ["New", "Reused"])
            replacement = self.folder / "replacement.pem"
            replacement.write_text(stranger)
            replacement.rename(ca)
            self.assertRegex(request(), r"\Aerror unreachable .*handshake failed: TLS: ")
            ca.write_text("no certificate")
            self.assertIn(f"TLS cannot use {ca}: ", request())
            ca.write_text(root)
            self.assertEqual([request(), request()], ["New", "Reused"])
            ca.unlink()  # it may be in the middle of a replacement
            self.assertEqual(request(), "Reused")

    def test_a_forked_child_opens_a_connection_of_its_own(self):
        context, places = self.server_context(), itertools.count(1)

        def serve(connection):
            place = next(places)
            with context.wrap_socket(connection, server_side=True) as line:
                while line.recv(65536):
                    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % place)

        port = Peer(self, serve).port
        self.assertEqual(self.ask(port, "--fork", "yes", "--requests", 3).split("\n"), ["ok 200 1", "ok 200 2", "ok 200 1", ""])

    def test_a_stalled_handshake_fails_at_the_deadline(self):
        silent = Peer(self, lambda c: c.recv(1) and threading.Event().wait(GUARD))
        self.assertRegex(self.ask(silent.port, "--timeout", "300ms"),
                         r"\Aerror unreachable GET https://localhost:\d+/: the deadline passed during the handshake\n\Z")

    def test_a_truncated_response_is_never_accepted(self):
        port = self.s_server()  # whose answers have no length: they end with the connection
        whole = 0

        def measure(from_server, offset, data):
            nonlocal whole
            whole = max(whole, offset + len(data)) if from_server else whole
            return data, True

        self.assertRegex(self.ask(relay(self, port, measure).port), r"\Aok 200 ")
        for place in range(0, whole - 1, max(1, whole // 15)):
            def cut(from_server, offset, data, place=place):
                return (data[:place - offset], offset + len(data) < place) if from_server else (data, True)

            with self.subTest(place=place):
                self.assertRegex(self.ask(relay(self, port, cut).port), r"\Aerror (unreachable|disconnected) ")

    def test_renegotiation_is_refused(self):
        certificate, key = self.good
        server = Program(self, "openssl", "s_server", "-accept", "127.0.0.1:0", "-tls1_2", "-cert", certificate, "-key", key,
                         "-cert_chain", self.middle.certificate, stdin=subprocess.PIPE)
        port = server.prints(r"ACCEPT \S+:(\d+)")[1]
        client = Program(self, BUILD / "https_client", "--ca", self.root.certificate, f"https://localhost:{port}")
        server.prints("GET / HTTP/1.1")
        with server.process.stdin as commands:
            commands.write(b"R\n")
            commands.flush()
            server.prints("no renegotiation")
            self.assertRegex(client.prints(r"(ok|error) .*\n")[0], r"\Aerror disconnected ")


class Worker(Tls):
    def test_a_worker_behind_a_proxy_finishes_its_jobs_and_stops_in_order(self):
        backend = Backend(BUILD)
        self.addCleanup(backend.close)
        proxy = relay(self, int(backend.url.rsplit(":", 1)[1]), tls=self.server_context())
        worker = Program(self, BUILD / "tls_worker", OJS_URL=f"https://localhost:{proxy.port}", OJS_POLL_INTERVAL="50ms",
                         TLS_CA_FILE=str(self.root.certificate))
        backend.ask("/ojs/v1/jobs/batch", {"jobs": [{"type": "hello.greet", "args": []}] * 20})
        # What is claimed may come too late to be begun; what is done is not lost.
        self.assertTrue(eventually(lambda: backend.ask("/dev/summary")["completed"] > 0))
        worker.process.send_signal(signal.SIGTERM)
        self.assertEqual(worker.process.wait(GUARD), 0, worker.said())
        after = backend.ask("/dev/summary")
        self.assertEqual((after["active"], after["completed"] + after["available"]), (0, 20))
        self.assertEqual([each["state"] for each in after["workers"].values()], ["terminate"])


if __name__ == "__main__":
    unittest.main()
