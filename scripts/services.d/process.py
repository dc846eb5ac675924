"""Starting, recognising and ending server processes.

A process is ours only if its number, its start time and its command line are those that were recorded: a
number alone may have been given to somebody else since. Nothing here ends a process by its name.
"""

import os
import pathlib
import signal
import subprocess
import time

from state import ServiceError

POLL_S = 0.05
LOG_LINES = 30


def _stat(pid):
    """(state, parent, start time in ticks) of a process, or None when there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[19])


def alive(record):
    """Whether the recorded process still runs; a zombie does not, one that is still freeing its memory does."""
    if not record:
        return False
    place = pathlib.Path(f"/proc/{record['pid']}")
    try:
        stat = _stat(record["pid"])
        if stat is None or stat[2] != record["start"]:
            return False
        if stat[0] in "ZX":
            # The first thread may have ended before the others, which still hold the ports.
            return len(list((place / "task").iterdir())) > 1
        words = (place / "cmdline").read_bytes()
    except OSError:
        return False
    # An exiting process has no command line any more; its start time is still its own.
    return not words or record["needle"].encode() in words


def spawn(command, needle, log, **options):
    """Starts a server in a session of its own, its output appended to `log`; returns its record."""
    with open(log, "ab") as output:
        try:
            child = subprocess.Popen(  # pylint: disable=consider-using-with
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options
            )
        except OSError as error:
            raise ServiceError(f"cannot start {command[0]}: {error}") from None
    stat = _stat(child.pid)
    return {"pid": child.pid, "start": stat[2] if stat else 0, "needle": needle}


def reap(record):
    """Collects an ended child of this script; nothing when it is not ours to collect."""
    try:
        os.waitpid(record["pid"], os.WNOHANG)
    except ChildProcessError:
        pass


def tail(log):
    """The last lines of a log, for an error message."""
    try:
        lines = pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join("    " + line for line in lines[-LOG_LINES:]) or "(the log is empty)"


def wait_ready(name, record, log, ready, timeout_s):
    """Waits until `ready()`; an ended process or a passed limit is an error that shows the log."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        reap(record)
        if not alive(record):
            raise ServiceError(f"{name} ended while starting; the end of {log}:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise ServiceError(f"{name} was not ready within {timeout_s:.0f} s; the end of {log}:\n{tail(log)}")
        time.sleep(POLL_S)


def children(pid):
    """Records of a process's direct children."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(entry.name)
            if stat and stat[1] == pid and stat[0] not in "ZX":
                found.append({"pid": int(entry.name), "start": stat[2], "needle": ""})
    return found


def _signal(record, number):
    if alive(record):
        try:
            os.kill(record["pid"], number)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise ServiceError(f"process {record['pid']} belongs to another user; end it as that user") from None


def _gone(records, timeout_s):
    deadline = time.monotonic() + timeout_s
    while True:
        for record in records:
            reap(record)
        if not any(alive(record) for record in records):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)


def end(record, signals):
    """Ends a process by the given (signal, seconds to wait) in turn, then by SIGKILL with its children."""
    for number, wait_s in signals:
        _signal(record, number)
        if _gone([record], wait_s):
            return
    kill(record)


def kill(record):
    """SIGKILL to the process and, at once after it, to its children; waits until all are gone."""
    if not alive(record):
        return
    family = [record] + children(record["pid"])
    for member in family:
        _signal(member, signal.SIGKILL)
    if not _gone(family, 20):
        raise ServiceError(f"process {record['pid']} did not end within 20 s of SIGKILL")
