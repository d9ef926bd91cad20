"""Certificates for tests, made by the openssl command: an authority, one below it, and whom they vouch for."""

import subprocess
from pathlib import Path

CONFIG = """
[ca]
default_ca = this
[this]
new_certs_dir = {folder}
database = {folder}/{name}.index
serial = {folder}/{name}.serial
crlnumber = {folder}/{name}.crlnumber
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
"""


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Authority:
    """Issues certificates below itself; all its files are in one folder."""

    def __init__(self, folder, name, by=None, **how):
        self.folder, self.name = Path(folder), name
        for kind, text in (("index", ""), ("serial", "1000\n"), ("crlnumber", "1000\n")):
            self.file(kind).write_text(text)
        self.configure("DNS:unused")
        self.new_key(name)
        if by is None:
            openssl("req", "-x509", "-new", "-key", self.key, "-subj", f"/CN={name}", "-days", 30, "-out", self.certificate,
                    "-config", self.file("conf"), "-extensions", "authority")
        else:
            by.configure("DNS:unused")
            by.sign(name, extensions="authority", **how)

    def file(self, kind):
        return self.folder / f"{self.name}.{kind}"

    key = property(lambda self: self.file("key"))
    certificate = property(lambda self: self.file("pem"))

    def configure(self, names):
        text = CONFIG.format(folder=self.folder, name=self.name, names=names)
        self.file("conf").write_text(text + "[req]\ndistinguished_name = nothing\n[nothing]\n")

    def new_key(self, name):
        openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", self.folder / f"{name}.key")

    def sign(self, name, extensions="leaf", start="20200101000000Z", end="20491231000000Z"):
        request = self.folder / f"{name}.csr"
        openssl("req", "-new", "-key", self.folder / f"{name}.key", "-subj", f"/CN={name}", "-out", request, "-config",
                self.file("conf"))
        openssl("ca", "-batch", "-notext", "-config", self.file("conf"), "-in", request, "-out", self.folder / f"{name}.pem",
                "-extensions", extensions, "-startdate", start, "-enddate", end)
        return self.folder / f"{name}.pem"

    def issue(self, name, names="DNS:localhost,IP:127.0.0.1", **how):
        """Paths of a certificate with all above it but the root, and of its key."""
        self.configure(names)
        self.new_key(name)
        made = self.sign(name, **how)
        return made, self.folder / f"{name}.key"

    def revoke(self, certificate):
        openssl("ca", "-config", self.file("conf"), "-revoke", certificate)

    def revocations(self):
        out = self.file("crl")
        openssl("ca", "-config", self.file("conf"), "-gencrl", "-out", out)
        return out.read_text()
