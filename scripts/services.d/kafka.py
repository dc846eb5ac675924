"""Kafka brokers: one node, three nodes, or one node with a SASL_SSL listener beside the plain one.

A node's `server.properties` says everything; its path is what its process is recognised by.
"""

import base64
import secrets
import shutil
import signal

import fetch
import process
from state import LOOPBACK, ServiceError, start_timeout_s

STARTED = "Kafka Server started"
USER = "handstamp"
# For a JVM that ends soon: no second compiler.
QUICK = ["-XX:TieredStopAtLevel=1"]
# The limits of the crash and zombie tests: the broker's own minimums are 6 s and more.
COMMON = """\
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.num.partitions=1
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=3000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=1000
group.share.min.session.timeout.ms=3000
group.share.session.timeout.ms=6000
group.share.min.heartbeat.interval.ms=500
group.share.heartbeat.interval.ms=1000
group.share.min.record.lock.duration.ms=1000
group.share.record.lock.duration.ms=5000
"""


class Kafka:
    """What the command line needs of one kind of service: ports, making, starting, stopping, variables."""

    def __init__(self, instance):
        self.instance = instance
        self.sasl = instance.kind == "kafka-sasl"
        self.members = 3 if instance.kind == "kafka3" else 1
        # Listeners of a node in the order of its ports. PROXIED tells its clients the port after it, on which
        # nothing listens until a proxy does: a client goes where the broker says, so only that leads it there.
        self.listeners = ["PLAINTEXT", "CONTROLLER"] + (["SASL_SSL"] if self.sasl else []) + ["PROXIED"]
        self.ports_each = len(self.listeners) + 1
        self.port_count = self.ports_each * self.members

    def prepare(self):
        """Downloads what is missing."""
        fetch.kafka_lib()

    def port(self, state, member, listener):
        """The port of a node's listener."""
        return state["ports"][(member - 1) * self.ports_each + self.listeners.index(listener)]

    def _advertised(self, state, member, listener):
        """The port that clients of a node's listener are told."""
        return self.port(state, member, listener) if listener != "PROXIED" else state["ports"][member * self.ports_each - 1]

    def _bootstrap(self, state, listener="PLAINTEXT"):
        return ",".join(f"{LOOPBACK}:{self.port(state, member, listener)}" for member in range(1, self.members + 1))

    def _node(self, member):
        return self.instance.folder / f"node{member}"

    def _properties(self, state, member):
        folder = self._node(member)
        addresses = ",".join(f"{name}://{LOOPBACK}:{self.port(state, member, name)}" for name in self.listeners)
        advertised = ",".join(f"{name}://{LOOPBACK}:{self._advertised(state, member, name)}" for name in self.listeners)
        voters = ",".join(f"{n}@{LOOPBACK}:{self.port(state, n, 'CONTROLLER')}" for n in range(1, self.members + 1))
        lines = [
            "process.roles=broker,controller", f"node.id={member}",
            f"listeners={addresses}", f"advertised.listeners={advertised}",
            "controller.listener.names=CONTROLLER", "inter.broker.listener.name=PLAINTEXT",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,PROXIED:PLAINTEXT",
            f"log.dirs={folder / 'kraft'}",
        ]
        if self.members == 1:
            lines.append(f"controller.quorum.bootstrap.servers={LOOPBACK}:{self.port(state, 1, 'CONTROLLER')}")
        else:
            lines.append(f"controller.quorum.voters={voters}")
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            lines.append(f"{topic}.replication.factor={self.members}")
        for topic in ("transaction.state.log", "share.coordinator.state.topic"):
            lines.append(f"{topic}.min.isr={min(self.members, 2)}")
        if self.members > 1:
            lines += [f"default.replication.factor={self.members}", "min.insync.replicas=2"]
        if self.sasl:
            lines += [
                "sasl.enabled.mechanisms=SCRAM-SHA-512",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config="
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
                f"ssl.keystore.location={folder / 'server.p12'}", "ssl.keystore.type=PKCS12",
                f"ssl.keystore.password={state['password']}", f"ssl.key.password={state['password']}",
            ]
        return "\n".join(lines) + "\n" + COMMON

    def make(self, state):
        """Writes fresh folders and formats them."""
        state["password"] = secrets.token_hex(16) if self.sasl else None
        classpath = f"{fetch.kafka_lib()}/*"
        tool = ["java", *QUICK, "-XX:+UseSerialGC", "-cp", classpath, "kafka.tools.StorageTool"]
        # As `StorageTool random-uuid` writes them, without a JVM; `x` keeps it from looking like an option.
        cluster = "x" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:]
        for member in range(1, self.members + 1):
            folder = self._node(member)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            if self.sasl:
                self._certificates(folder, state["password"])
            properties = folder / "server.properties"
            properties.write_text(self._properties(state, member), encoding="utf-8")
            properties.chmod(0o600)
            command = tool + ["format", "-t", cluster, "-c", str(properties)]
            if self.members == 1:
                command.append("--standalone")
            if self.sasl:
                command += ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={state['password']}]"]
            fetch.run(command, "formatting Kafka", 120)

    def _certificates(self, folder, password):
        """A certificate authority of this broker alone, and a certificate for 127.0.0.1 signed by it."""

        def keytool(*words):
            fetch.run(["keytool", *words, "-storepass", password], "making certificates", 120, cwd=folder)

        key = ["-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650", "-storetype", "PKCS12"]
        keytool("-genkeypair", "-alias", "ca", "-dname", "CN=Handstamp test CA", "-ext", "bc:c=ca:true",
                "-ext", "ku:c=keyCertSign,cRLSign", "-keystore", "ca.p12", *key)
        keytool("-exportcert", "-rfc", "-alias", "ca", "-keystore", "ca.p12", "-file", "ca.pem")
        keytool("-genkeypair", "-alias", "server", "-dname", "CN=127.0.0.1", "-keystore", "server.p12", *key)
        keytool("-certreq", "-alias", "server", "-keystore", "server.p12", "-file", "server.csr")
        keytool("-gencert", "-rfc", "-alias", "ca", "-keystore", "ca.p12", "-infile", "server.csr",
                "-outfile", "server.pem", "-validity", "3650", "-ext", "san=ip:127.0.0.1,dns:localhost")
        keytool("-importcert", "-noprompt", "-alias", "ca", "-keystore", "server.p12", "-file", "ca.pem")
        keytool("-importcert", "-noprompt", "-alias", "server", "-keystore", "server.p12", "-file", "server.pem")

    def start(self, state, members, recorded):
        """Starts the given nodes together and waits for each; `recorded()` is called when a process exists."""
        lib = fetch.kafka_lib()
        waiting = []
        for member in members:
            log, properties = self.instance.log(member), self._node(member) / "server.properties"
            seen = log.stat().st_size if log.exists() else 0
            command = [
                "java", "-Xmx512m" if self.members == 1 else "-Xmx384m", "-XX:+UseSerialGC",
                # A private one lives for seconds: most of its work is starting.
                *(QUICK if "@" in self.instance.name else []),
                f"-Dlog4j2.configurationFile={fetch.SERVICES_D / 'kafka' / 'log4j2.properties'}",
                "-cp", f"{lib}/*", "kafka.Kafka", str(properties),
            ]
            record = process.spawn(command, str(properties), log, cwd=self.instance.folder)
            state["processes"][str(member)] = record
            recorded()
            waiting.append((member, record, log, seen))
        limit_s = start_timeout_s(120)
        for member, record, log, seen in waiting:
            def started(log=log, seen=seen):
                with open(log, "rb") as file:
                    file.seek(seen)
                    return STARTED.encode() in file.read()

            process.wait_ready(f"{self.instance.name} node {member}", record, log, started, limit_s)

    def stop(self, state, member, mode):
        """Ends a node; `mode` is "clean" (its data stay good), else it gets little time: its data are not needed."""
        wait_s = 30 if mode == "clean" else 3
        process.end(state["processes"].get(str(member)), [(signal.SIGTERM, wait_s)])

    def remove(self, _state):
        """Removes the data."""
        for member in range(1, self.members + 1):
            shutil.rmtree(self._node(member), ignore_errors=True)

    def variables(self, state):
        """The environment variables that tell tests where this service is."""
        if self.sasl:
            return {
                "HANDSTAMP_TEST_KAFKA_SASL": self._bootstrap(state, "SASL_SSL"),
                "HANDSTAMP_TEST_KAFKA_SASL_PLAIN": self._bootstrap(state),
                "HANDSTAMP_TEST_KAFKA_CA": str(self._node(1) / "ca.pem"),
                "HANDSTAMP_TEST_KAFKA_SASL_USER": USER,
                "HANDSTAMP_TEST_KAFKA_SASL_PASSWORD": state["password"],
            }
        name = "HANDSTAMP_TEST_KAFKA3" if self.members > 1 else "HANDSTAMP_TEST_KAFKA"
        lines = {name: self._bootstrap(state)}
        # A broker that was started by an older version of this script has no such listener.
        if len(state["ports"]) == self.port_count:
            lines[f"{name}_PROXIED"] = ",".join(
                f"{LOOPBACK}:{self.port(state, n, 'PROXIED')}={LOOPBACK}:{self._advertised(state, n, 'PROXIED')}"
                for n in range(1, self.members + 1)
            )
        return lines

    def version(self):
        """The version of the server, from its jar."""
        jars = sorted(fetch.kafka_lib().glob("kafka_2.13-*.jar"))
        if not jars:
            raise ServiceError(f"{fetch.kafka_lib()} has no broker; remove it")
        return "Apache Kafka " + jars[0].stem.removeprefix("kafka_2.13-")
