"""A private PostgreSQL server: Debian's, in a folder of its own, on a Unix socket (and on a port only where asked)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from programs import Ports, eventually, unprivileged  # noqa: E402

TIMEOUT = 120  # seconds for a server to come up or go down, on a machine with better things to do
SIGNAL = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
FIELD, RECORD = "\x1f", "\x1e"


def tools():
    """The newest folder with initdb and postgres, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    found += map(Path, os.environ.get("PATH", "").split(os.pathsep))
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def missing():
    """What a test would want and this machine has not, or ""."""
    if tools() is None:
        return "no PostgreSQL server (Debian package postgresql)"
    return "" if shutil.which("psql") else "no psql (Debian package postgresql-client)"


def pooler():
    """PgBouncer's program, or None."""
    return shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")


def literal(value):
    """A value as SQL."""
    if value is None:
        return "NULL"
    return "'" + (value if isinstance(value, str) else json.dumps(value)).replace("'", "''") + "'"


class SqlError(Exception):
    pass


class Database:
    """A database, and a psql in it that stays: one session."""

    def __init__(self, server, name):
        self.server, self.name, self.process = server, name, None

    def url(self, **more):
        return self.server.url(dbname=self.name, **more)

    def ask(self, statement):
        """What it printed. Raises SqlError with the server's words, or where there is no server."""
        if self.process is None or self.process.poll() is not None:
            self.close()
            command = ["psql", "-qAtX", "-F", FIELD, "-R", RECORD, "-v", "VERBOSITY=terse", self.url()]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, errors="replace", bufsize=-1)
        try:
            self.process.stdin.write(f"{statement}\n;\n\\echo {RECORD}:ERROR:SQLSTATE{RECORD}\n")
            self.process.stdin.flush()
        except OSError as error:
            raise SqlError(f"psql has left: {error}") from None
        printed = ""
        while line := self.process.stdout.readline():
            if end := re.fullmatch(f"{RECORD}(true|false)(.....)?{RECORD}\n", line):
                if end[1] == "true":
                    raise SqlError(printed.strip())
                return printed.rstrip("\n")
            printed += line
        raise SqlError(f"psql has left: {printed}")

    def rows(self, query):
        """The rows of a query, or those that a statement returns, as dictionaries."""
        return json.loads(self.ask(f"WITH answer AS ({query}) SELECT coalesce(json_agg(answer), '[]') FROM answer"))

    def script(self, text):
        """Many statements, of which the first wrong one ends all."""
        command = ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-f", "-", self.url()]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise SqlError(done.stderr)

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


class Pooler:
    """A PgBouncer before a server."""

    def __init__(self, clean_up, server, mode):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-pool-"))
        clean_up(shutil.rmtree, self.folder, ignore_errors=True)
        settings = self.folder / "ini"
        settings.write_text(f"[databases]\n* = host={server.folder} port={server.port} user=postgres\n[pgbouncer]\n"
                            f"auth_type = any\nlisten_port = 6432\nunix_socket_dir = {self.folder}\npool_mode = {mode}\n")
        if server.as_user:
            os.chown(self.folder, server.as_user["user"], server.as_user["group"])
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen([pooler(), settings], stdout=self.log, stderr=self.log, **server.as_user)
        clean_up(self.end)
        if not eventually((self.folder / ".s.PGSQL.6432").exists):
            raise RuntimeError((self.folder / "log").read_text())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def url(self, database):
        return database.url(host=self.folder, port=6432)


class Postgres:
    """clean_up(function): how to register for the end, such as a test's addCleanup. durable: fsync; without, a
    server that is killed keeps everything while the machine runs. tcp: a port on loopback as well.
    standby_of: another, which this one follows until pg_promote()."""

    def __init__(self, clean_up, durable=False, tcp=False, standby_of=None, **settings):
        self.bin = tools()
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-pg-"))
        clean_up(shutil.rmtree, self.folder, ignore_errors=True)
        self.as_user = unprivileged("postgres")
        if self.as_user:
            os.chown(self.folder, self.as_user["user"], self.as_user["group"])
        self.ports = Ports() if tcp else None
        self.port = self.ports.first if tcp else 5432  # that of the socket's name
        self.settings = {"listen_addresses": "127.0.0.1" if tcp else "", "port": self.port, "shared_buffers": "32MB",
                         "unix_socket_directories": self.folder, "max_connections": 100, "log_min_messages": "fatal",
                         "fsync": "on" if durable else "off", "full_page_writes": "on" if durable else "off", **settings}
        self.data, self.log, self.process = self.folder / "data", self.folder / "log", None
        self.databases, self.made = [], 0
        made_by = ["initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        if standby_of:
            made_by = ["pg_basebackup", "-R", "-c", "fast", "-d", standby_of.url()]
        subprocess.run([self.bin / made_by[0], *made_by[1:], "-D", self.data, "--no-sync"], check=True, capture_output=True,
                       cwd=self.folder, **self.as_user)
        clean_up(self.end)
        self.start()

    def access(self, lines):
        """pg_hba.conf: these lines before the one that trusts everybody."""
        (self.data / "pg_hba.conf").write_text(lines + "\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n")
        if self.process is not None:
            self.process.send_signal(signal.SIGHUP)

    def start(self):
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.bin / "postgres", "-D", self.data, *options], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, cwd=self.folder, **self.as_user)
        if not eventually(self.answers, limit=TIMEOUT):
            raise RuntimeError(self.log.read_text(errors="replace"))

    def answers(self):
        """Whether it takes connections; None tells the impatient that it never will."""
        if self.process.poll() is not None:
            raise RuntimeError(self.log.read_text(errors="replace"))
        found = subprocess.run([self.bin / "pg_isready", "-q", "-h", self.folder, "-p", str(self.port)])
        return found.returncode == 0

    def stop(self, mode="fast"):
        for each in self.databases:
            each.close()
        if self.process.poll() is None:
            self.process.send_signal(SIGNAL[mode])
        self.process.wait(TIMEOUT)

    def end(self):
        if self.process is not None:
            self.stop("immediate")

    def url(self, **more):
        """A connection string for libpq; what is given goes in as it is (dbname, user, password, host ...)."""
        parts = {"host": self.folder, "port": self.port, "user": "postgres", "dbname": "postgres", **more}
        return " ".join(f"{name}='{value}'" for name, value in parts.items())

    def database(self, name="postgres", kind=Database):
        found = kind(self, name)
        self.databases.append(found)
        return found

    def create(self, kind=Database, template="template0"):
        """A new database, a copy of another to which nobody is connected."""
        self.made += 1
        name = f"t{self.made}"
        self.root().ask(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.database(name, kind)

    def root(self):
        return next((each for each in self.databases if each.name == "postgres"), None) or self.database()
