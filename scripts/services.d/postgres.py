"""PostgreSQL servers: 18 from PyPI, 15 as the machine or Debian has it, or a pair with a synchronous standby.

PostgreSQL refuses to run as root. As root it runs as a user of its own, who must reach its programs and
its data: where that user cannot enter this checkout both go to a folder in the system's place for temporary files,
recorded in the state and removed with the instance.
"""

import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile

import fetch
import process
from state import LOOPBACK, ServiceError, lock, start_timeout_s

USER = "hs_pg"
CONNECTIONS = 200
SETTINGS = {"wal_level": "logical", "max_connections": CONNECTIONS, "max_prepared_transactions": 0}
STANDBY_NAME = "standby"


def _account():
    """Popen options that run a program as PostgreSQL's user: none unless this is root."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
    if os.geteuid() != 0:
        return {"env": environment}
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        with lock("user"):
            if USER not in {account.pw_name for account in pwd.getpwall()}:
                fetch.run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER],
                          f"making the user {USER}", 60)
        entry = pwd.getpwnam(USER)
    return {"env": environment, "user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _reachable(path):
    """Whether PostgreSQL's user can read and enter a folder."""
    test = ["/bin/sh", "-c", 'test -r "$1" && test -x "$1"', "sh", str(path)]
    return subprocess.run(test, cwd="/", check=False, **_account()).returncode == 0


class Postgres:
    """What the command line needs of one kind of service: ports, making, starting, stopping, variables."""

    def __init__(self, instance):
        self.instance = instance
        self.members = 2 if instance.kind == "postgres-pair" else 1
        self.port_count = self.members
        self.old = instance.kind == "postgres15"

    def prepare(self):
        """Downloads what is missing."""
        self._found()

    def _found(self):
        return fetch.postgres_15() if self.old else fetch.postgres_18()

    def _data(self, state, member):
        return pathlib.Path(state["base"]) / f"data{member}"

    def make(self, state):
        """Makes fresh, reachable folders and initialises the first member's data."""
        root, programs = self._found()
        base = self.instance.folder / "pg"
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        base.chmod(0o755)
        state["moved"] = None
        if not _reachable(base) or not _reachable(programs):
            base.rmdir()
            base = pathlib.Path(tempfile.mkdtemp(prefix="handstamp-pg."))
            base.chmod(0o755)
            state["moved"] = str(base)
            if not _reachable(programs):
                if root is None:
                    raise ServiceError(f"the user {USER} cannot run the programs in {programs}")
                shutil.copytree(root, base / "programs", symlinks=True)
                programs = base / "programs" / programs.relative_to(root)
        state["base"], state["bin"] = str(base), str(programs)
        for member in range(1, self.members + 1):
            data = self._data(state, member)
            data.mkdir(mode=0o700)
            if os.geteuid() == 0:
                shutil.chown(data, USER, USER)
        self._run(state, ["initdb", "-D", str(self._data(state, 1)), "-A", "trust", "-U", "postgres", "-E", "UTF8"],
                  "initialising PostgreSQL")
        if self.members == 2:
            with open(self._data(state, 1) / "postgresql.auto.conf", "a", encoding="utf-8") as file:
                file.write(f"synchronous_standby_names = '{STANDBY_NAME}'\n")

    def _options(self, state):
        options = _account()
        libraries = [str(path) for path in pathlib.Path(state["bin"]).parents[2].glob("*-linux-gnu*") if path.is_dir()]
        if libraries and not state["bin"].startswith("/usr/"):
            options["env"]["LD_LIBRARY_PATH"] = ":".join(libraries)
        return options

    def _run(self, state, words, what):
        return fetch.run([str(pathlib.Path(state["bin"]) / words[0]), *words[1:]], what, 180,
                         cwd=state["base"], **self._options(state))

    def _copy_standby(self, state):
        """Fills the standby's data from the running primary, once."""
        address = f"host={LOOPBACK} port={state['ports'][0]} user=postgres application_name={STANDBY_NAME}"
        self._run(state, ["pg_basebackup", "-D", str(self._data(state, 2)), "-d", address, "-R", "-X", "stream", "-c", "fast"],
                  "copying the primary to its standby")

    def start(self, state, members, recorded):
        """Starts the given members, the primary first; `recorded()` is called when a process exists."""
        for member in members:
            data, log = self._data(state, member), self.instance.log(member)
            if member == 2 and not (data / "PG_VERSION").exists():
                self._copy_standby(state)
            # The processes that could have held it were seen to be gone.
            (data / "postmaster.pid").unlink(missing_ok=True)
            command = [str(pathlib.Path(state["bin"]) / "postgres"), "-D", str(data), "-p", str(state["ports"][member - 1]),
                       "-c", f"listen_addresses={LOOPBACK}", "-c", "unix_socket_directories="]
            for name, value in SETTINGS.items():
                command += ["-c", f"{name}={value}"]
            record = process.spawn(command, str(data), log, cwd=state["base"], **self._options(state))
            state["processes"][str(member)] = record
            recorded()
            process.wait_ready(f"{self.instance.name} {member}", record, log, lambda data=data: _status(data) == "ready", start_timeout_s(60))
        if self.members == 2 and list(members) == [1, 2]:
            self._wait_synchronous(state)

    def _wait_synchronous(self, state):
        question = ["psql", "-h", LOOPBACK, "-p", str(state["ports"][0]), "-U", "postgres", "-Atc",
                    "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"]
        process.wait_ready(
            self.instance.name, state["processes"]["2"], self.instance.log(2),
            lambda: self._run(state, question, "asking the primary for its standby").strip() == "1", start_timeout_s(60),
        )

    def stop(self, state, member, mode):
        """Ends a member; `mode` is "clean" (checkpoint first), "immediate" (as a crash) or "fast"."""
        signals = [(signal.SIGINT, 30)] if mode == "clean" else []
        process.end(state["processes"].get(str(member)), signals + [(signal.SIGQUIT, 10)])

    def remove(self, state):
        """Removes the data."""
        shutil.rmtree(self.instance.folder / "pg", ignore_errors=True)  # absent when it was moved
        if state.get("moved"):
            shutil.rmtree(state["moved"], ignore_errors=True)

    def variables(self, state):
        """The environment variables that tell tests where this service is."""
        urls = [f"postgres://postgres@{LOOPBACK}:{port}/postgres" for port in state["ports"]]
        if self.members == 2:
            return {"HANDSTAMP_TEST_POSTGRES_PRIMARY": urls[0], "HANDSTAMP_TEST_POSTGRES_STANDBY": urls[1]}
        name = "HANDSTAMP_TEST_POSTGRES15" if self.old else "HANDSTAMP_TEST_POSTGRES"
        return {name: urls[0], f"{name}_BIN": state["bin"]}

    def version(self):
        """The version of the server, as it says itself."""
        _, programs = self._found()
        text = fetch.run([str(programs / "postgres"), "--version"], "asking PostgreSQL for its version", 20).strip()
        return "PostgreSQL " + text.split(")", 1)[-1].strip() if self.old else text.replace("postgres (PostgreSQL)", "PostgreSQL")


def _status(data):
    """What the server wrote about itself: "starting", "ready", "standby", "stopping", or "" for nothing yet."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return lines[7].strip() if len(lines) > 7 else ""
