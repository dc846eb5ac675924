"""Where the state of this checkout's test servers lives, and who may change it.

Everything is under `.services/` of the checkout: one folder an instance in `run/`, its `state.json` is
authoritative for ports, folders and processes (a process is only believed after process.py checked it).
Locks are files beside, never inside, an instance's folder, so that `down` can remove the folder.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import socket
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOME = ROOT / ".services"
RUN = HOME / "run"
LOCKS = HOME / "locks"
CACHE = pathlib.Path(os.environ.get("HANDSTAMP_SERVICES_CACHE") or HOME / "cache").absolute()
LOOPBACK = "127.0.0.1"
LOCK_WAIT_S = 600
# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes a port between two starts.
PORTS = range(20000, 32000)
KINDS = ("kafka", "kafka3", "kafka-sasl", "postgres", "postgres15", "postgres-pair")
NAME = re.compile(r"^([a-z0-9-]+?)(?:@([A-Za-z0-9._-]{1,40}))?(?::([1-9]))?$")


class ServiceError(Exception):
    """A failure to be shown to the person at the terminal: what happened and what to do."""


def start_timeout_s(default):
    """How long a server may take to answer; HANDSTAMP_SERVICES_TIMEOUT (seconds) overrides it."""
    text = os.environ.get("HANDSTAMP_SERVICES_TIMEOUT")
    try:
        return float(text) if text else float(default)
    except ValueError:
        raise ServiceError(f"HANDSTAMP_SERVICES_TIMEOUT is {text!r}; it must be a number of seconds") from None


def parse(name):
    """Splits KIND[@ID][:MEMBER] into the instance's name, its kind and the member's number (None for all)."""
    found = NAME.match(name)
    if not found or found[1] not in KINDS:
        raise ServiceError(f"unknown service {name!r}; known: {' '.join(KINDS)}, each also as NAME@ID for a server of your own")
    instance = found[1] + (f"@{found[2]}" if found[2] else "")
    return instance, found[1], int(found[3]) if found[3] else None


def make_folders():
    """Creates `.services/` searchable by every user, whatever the umask: PostgreSQL may run as another one."""
    for folder in (HOME, RUN, LOCKS):
        folder.mkdir(exist_ok=True)
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o755)


@contextlib.contextmanager
def lock(name, path=None, wait_s=LOCK_WAIT_S):
    """Holds an exclusive file lock; a second holder waits a bounded time. Never held by a started server."""
    path = path or LOCKS / f"{name}.lock"
    with open(path, "w", encoding="utf-8") as file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServiceError(f"{path} is held by another process since {wait_s} s") from None
                time.sleep(0.05)
        yield


class Instance:
    """One server (or group of servers) of this checkout, with its folder and its state."""

    def __init__(self, name):
        self.name, self.kind, _ = parse(name)
        self.folder = RUN / self.name
        self.file = self.folder / "state.json"

    def load(self):
        """The recorded state, or None where there is none."""
        try:
            return json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ServiceError(f"{self.file} is not readable ({error}); end its servers by hand and remove the folder") from None

    def save(self, state):
        """Writes the state in one step."""
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(self.file)

    def log(self, member):
        """The log file of a member."""
        return self.folder / f"server{member}.log"


def instances():
    """Every instance with a recorded state, by name."""
    if not RUN.is_dir():
        return []
    return [Instance(folder.name) for folder in sorted(RUN.iterdir()) if (folder / "state.json").exists()]


def port_is_free(port):
    """Whether a server could listen on the loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_ports(count, wanted):
    """`count` free ports: the wanted ones when they are still free, otherwise new ones no instance here has.

    The caller holds the lock "ports" and saves its state before it lets go.
    """
    if len(wanted) == count and all(port_is_free(port) for port in wanted):
        return wanted
    taken = {port for instance in instances() for port in (instance.load() or {}).get("ports", [])}
    chosen = []
    for port in random.sample(PORTS, len(PORTS)):
        if port not in taken and port_is_free(port):
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise ServiceError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
