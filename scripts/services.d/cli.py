"""The commands of scripts/services.

Every command that changes an instance holds that instance's lock, so two of them in one checkout wait for one
another; what an instance is and where it listens is read from its state, whether it runs from its processes.
"""

import argparse
import concurrent.futures
import functools
import os
import shlex
import signal
import subprocess
import sys
import threading

import process
from kafka import Kafka
from postgres import Postgres
from state import KINDS, ROOT, Instance, ServiceError, choose_ports, instances, lock, make_folders, parse

START_TRIES = 3
DEFAULT = ["kafka", "postgres"]
PRINTING = threading.Lock()
HELP = """\
Real servers for the tests, without containers, all on 127.0.0.1.

  up [NAME ...]       start with fresh data what does not run (default: kafka postgres)
  down [NAME ...]     end and remove the data (default: everything of this checkout)
  stop, start NAME    end and start again with the same data and ports; --immediate ends without a clean shutdown
  kill NAME           SIGKILL; restart NAME = stop + start
  status [NAME ...]   what runs, where; exit status 1 when a named one does not run
  env [NAME ...]      export lines for the tests (default: all that run, except private ones)
  versions [NAME ...] versions of the servers
  log NAME            path of the server's log

NAME is one of """ + " ".join(KINDS) + """;
NAME@ID is a server of your own beside it (ports and data of its own), NAME:2 the second member of a group.
"""


def say(text):
    """One line for the person at the terminal."""
    with PRINTING:
        print(text, flush=True)


def service(instance):
    """The driver of an instance's kind."""
    return Kafka(instance) if instance.kind.startswith("kafka") else Postgres(instance)


def running(state, member):
    """Whether a member's recorded process runs."""
    return state is not None and process.alive(state["processes"].get(str(member)))


def all_run(instance, state):
    """Whether every member runs."""
    return all(running(state, member) for member in range(1, service(instance).members + 1))


def end_all(instance, state, mode):
    """Ends every member, the last first, so that a standby goes before its primary."""
    driver = service(instance)
    for member in range(driver.members, 0, -1):
        if running(state, member):
            driver.stop(state, member, mode)


def up(name):
    """Starts an instance with fresh data unless all its members run."""
    instance = Instance(name)
    driver = service(instance)
    with lock(instance.name):
        state = instance.load()
        if all_run(instance, state):
            return say(f"{instance.name}: runs already ({where(state)})")
        if state:
            end_all(instance, state, "fast")
            driver.remove(state)
        driver.prepare()
        wanted = state["ports"] if state else []
        for attempt in range(1, START_TRIES + 1):
            with lock("ports"):
                state = {"kind": instance.kind, "owner": os.environ.get("HANDSTAMP_SERVICES_OWNER", ""), "processes": {},
                         "ports": choose_ports(driver.port_count, wanted)}
                instance.save(state)
            for member in range(1, driver.members + 1):
                instance.log(member).unlink(missing_ok=True)
            try:
                driver.make(state)
                instance.save(state)
                driver.start(state, range(1, driver.members + 1), functools.partial(instance.save, state))
                return say(f"{instance.name}: started ({where(state)})")
            except BaseException as error:
                end_all(instance, state, "fast")
                driver.remove(state)
                instance.file.unlink()
                taken = isinstance(error, ServiceError) and "in use" in str(error)
                if not taken or attempt == START_TRIES:
                    raise
                wanted = []
    return None


def down(name):
    """Ends an instance and removes its data and its state; its logs stay until the next `up`."""
    instance = Instance(name)
    with lock(instance.name):
        state = instance.load()
        if state is None:
            return
        end_all(instance, state, "fast")
        service(instance).remove(state)
        instance.file.unlink()
        say(f"{instance.name}: down")


def change(action, name, mode):
    """stop, start, restart or kill of an instance or one member of it, data and ports kept."""
    instance_name, _, member = parse(name)
    instance = Instance(instance_name)
    driver = service(instance)
    if member is not None and member > driver.members:
        raise ServiceError(f"{instance_name} has {driver.members} member(s), not {member}")
    members = [member] if member else list(range(1, driver.members + 1))
    with lock(instance_name):
        state = instance.load()
        if state is None:
            raise ServiceError(f"{instance_name} was never started here: scripts/services up {instance_name}")
        if action in ("stop", "restart", "kill"):
            for one in reversed(members):
                if running(state, one):
                    process.kill(state["processes"][str(one)]) if action == "kill" else driver.stop(state, one, mode)
        if action in ("start", "restart"):
            missing = [one for one in members if not running(state, one)]
            try:
                driver.start(state, missing, lambda: instance.save(state))
            except BaseException:
                for one in missing:
                    if running(state, one):
                        driver.stop(state, one, "fast")
                raise
    say(f"{name}: {({'stop': 'stopped', 'kill': 'killed'}).get(action, 'started')}")


def where(state):
    """Ports, for a status line."""
    return "port " + " ".join(str(port) for port in state["ports"])


def named(names):
    """The instances of the given names, or all with a state."""
    return [Instance(parse(name)[0]) for name in names] if names else instances()


def status(names):
    """Prints a line an instance; False when a named one does not run whole."""
    good = True
    for instance in named(names):
        state = instance.load()
        driver = service(instance)
        members = [running(state, member) for member in range(1, driver.members + 1)]
        word = "running" if all(members) else "partly running" if any(members) else "stopped" if state else "down"
        pids = " ".join(str(state["processes"][str(n + 1)]["pid"]) for n, runs in enumerate(members) if runs)
        say(f"{instance.name}: {word}" + (f" ({where(state)})" if state else "") + (f" pid {pids}" if pids else ""))
        good = good and (all(members) or not names)
    return good


def env(names):
    """Prints export lines; a named instance that does not run is an error."""
    lines = {"HANDSTAMP_TEST_SERVICES": str(ROOT / "scripts" / "services")}
    for instance in named(names):
        state = instance.load()
        if not all_run(instance, state):
            if names:
                raise ServiceError(f"{instance.name} does not run: scripts/services up {instance.name}")
            continue
        if names or "@" not in instance.name:
            lines |= service(instance).variables(state)
    for name, value in lines.items():
        say(f"export {name}={shlex.quote(value)}")


def versions(names):
    """Prints a line a server with its version; fetches what is missing."""
    for name in names or list(KINDS):
        instance = Instance(parse(name)[0])
        say(f"{instance.name}: {service(instance).version()}")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    say("java: " + (java.stderr.splitlines() or ["not installed"])[0])


def together(action, names):
    """Does one thing to several instances at once; the first error is raised when all have ended."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        results = [pool.submit(action, name) for name in dict.fromkeys(names)]
    errors = [result.exception() for result in results if result.exception()]
    if errors:
        for error in errors[1:]:
            print(f"services: {error}", file=sys.stderr)
        raise errors[0]


def run(options):
    """Carries one command out; False for an exit status of 1."""
    make_folders()
    for name in options.name:
        parse(name)
    whole = [parse(name)[0] for name in options.name]
    if options.command == "up":
        together(up, whole or DEFAULT)
    elif options.command == "down":
        owned = [one.name for one in instances() if options.owner is None or (one.load() or {}).get("owner") == options.owner]
        together(down, whole or owned)
    elif options.command in ("stop", "start", "restart", "kill"):
        if not options.name:
            raise ServiceError(f"{options.command} needs a name")
        mode = "immediate" if options.immediate else "clean"
        for name in options.name:
            change(options.command, name, mode)
    elif options.command == "status":
        return status(options.name)
    elif options.command == "env":
        env(options.name)
    elif options.command == "versions":
        versions(options.name)
    elif options.command == "log":
        for instance in named(options.name):
            for member in range(1, service(instance).members + 1):
                say(instance.log(member))
    return True


def main():
    """Reads the command line; errors go to standard error, with exit status 1 (2 for a wrong command line)."""
    parser = argparse.ArgumentParser(prog="scripts/services", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["up", "down", "stop", "start", "restart", "kill", "status", "env", "versions", "log"])
    parser.add_argument("name", nargs="*")
    parser.add_argument("--immediate", action="store_true", help="stop without a clean shutdown (PostgreSQL: as pg_ctl -m immediate)")
    parser.add_argument("--owner", help="down: only what was started under HANDSTAMP_SERVICES_OWNER=OWNER")
    options = parser.parse_intermixed_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not os.path.isdir("/proc/self"):
        parser.error("needs Linux's /proc to recognise its processes")
    try:
        return 0 if run(options) else 1
    except ServiceError as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
