"""Certificates for tests, made by the openssl command: an authority, one below it, and whom they vouch for."""

import subprocess
from pathlib import Path

CONFIG = """
[ca]
default_ca = this
[this]
new_certs_dir = {folder}
database = {folder}/{name}.index
rand_serial = yes
private_key = {folder}/{name}.key
certificate = {folder}/{name}.pem
default_md = sha256
default_crl_days = 30
policy = any
unique_subject = no
copy_extensions = none
[any]
commonName = supplied
[authority]
basicConstraints = critical,CA:true
keyUsage = keyCertSign,cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[leaf]
basicConstraints = CA:false
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
[unnamed]
basicConstraints = CA:false
[req]
distinguished_name = nothing
[nothing]
"""


LOOPBACK = "DNS:localhost,IP:127.0.0.1"
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


class Authority:
    """Issues certificates below itself; all its files are in one folder."""

    def __init__(self, folder, name, by=None, **how):
        self.folder, self.name = Path(folder), name
        self.certificate, self.key = self.file("pem"), self.file("key")
        self.file("index").touch()
        if by is None:
            openssl("req", "-x509", *NEW_KEY, self.key, "-subj", f"/CN={name}", "-days", 30, "-out", self.certificate,
                    "-config", self.config(), "-extensions", "authority")
        else:
            by.issue(name, extensions="authority", **how)

    def file(self, kind):
        return self.folder / f"{self.name}.{kind}"

    def config(self, names=LOOPBACK):
        self.file("conf").write_text(CONFIG.format(folder=self.folder, name=self.name, names=names))
        return self.file("conf")

    def issue(self, name, names=LOOPBACK, extensions="leaf", end="20491231000000Z"):
        """Paths of a certificate and of its key."""
        made, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        config = self.config(names)
        openssl("req", "-new", *NEW_KEY, key, "-subj", f"/CN={name}", "-out", request, "-config", config)
        openssl("ca", "-batch", "-notext", "-config", config, "-in", request, "-out", made, "-extensions", extensions,
                "-startdate", "20200101000000Z", "-enddate", end)
        return made, key

    def revoke(self, certificate):
        openssl("ca", "-config", self.config(), "-revoke", certificate)

    def revocations(self):
        openssl("ca", "-config", self.config(), "-gencrl", "-out", self.file("crl"))
        return self.file("crl").read_text()
