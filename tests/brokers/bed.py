"""What bench.py and soak.py stand on: a broker of their own on loopback, a folder with tools, hosts, and clients.

Needs pika for RabbitMQ and pulsar-client for Pulsar; each is imported only where it is used.
"""

import http.client
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

# A tool that gives its argument back, in WebAssembly: the cheapest that runs behind layers.
ECHO_WASM = """(component
  (core module $m
    (memory (export "memory") 2)
    (global $next (mut i32) (i32.const 64))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $next)
      (global.set $next (i32.add (global.get $next) (local.get 3))))
    (func (export "run") (param $at i32) (param $length i32) (result i32)
      (i32.store8 (i32.const 0) (i32.const 0))
      (i32.store (i32.const 4) (local.get $at))
      (i32.store (i32.const 8) (local.get $length))
      (i32.const 0)))
  (core instance $i (instantiate $m))
  (func $run (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
  (export "run" (func $run)))"""
ECHO_PYTHON = "import sys\nprint(sys.stdin.read())\n"
# A tool that changes something: a second run of one nonce fails, and says so.
WRITE_PYTHON = """import json, sys
read = json.load(sys.stdin)
open("out/" + read["nonce"] + ".txt", "x").close()
print(json.dumps(read))
"""
TOOLS = {"wasm": ("wasm", "main.wat", ECHO_WASM), "python": ("python", "main.py", ECHO_PYTHON),
         "write": ("python", "main.py", WRITE_PYTHON)}
PATIENCE = 180


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def wait_for(what, happens, within=PATIENCE):
    end = time.monotonic() + within
    while not (found := happens()):
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {within} s")
        time.sleep(0.05)
    return found


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Rabbit:
    """A RabbitMQ of its own."""

    PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"

    def __init__(self, folder):
        self.folder = folder / "rabbitmq"
        self.folder.mkdir()
        self.port, self.names = free_port(), free_port()
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\nlog.console = false\n"
            "vm_memory_high_watermark.absolute = 512MiB\ndisk_free_limit.absolute = 50MB\n")
        (self.folder / "plugins").write_text("[].")
        self.epmd = subprocess.Popen(["epmd", "-address", "127.0.0.1", "-port", str(self.names)])
        self.start()

    def start(self):
        of = self.folder
        environment = os.environ | {
            "HOME": str(of), "RABBITMQ_NODENAME": f"bed{self.port}@localhost", "RABBITMQ_MNESIA_BASE": str(of / "mnesia"),
            "RABBITMQ_LOG_BASE": str(of / "log"), "RABBITMQ_CONFIG_FILE": str(of / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(of / "plugins"), "RABBITMQ_PID_FILE": str(of / "pid"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(self.names), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"}
        self.process = subprocess.Popen([self.PROGRAM], env=environment, stdin=subprocess.DEVNULL,
                                        stdout=(of / "out.log").open("a"), stderr=subprocess.STDOUT)
        wait_for("RabbitMQ is up", lambda: answers(self.port))

    def stop(self):
        # The runtime's own process: the script that started it waits for it.
        os.kill(int((self.folder / "pid").read_text()), signal.SIGTERM)
        self.process.wait()

    def end(self):
        self.stop()
        self.epmd.kill()
        self.epmd.wait()

    def url(self):
        return f"amqp://127.0.0.1:{self.port}"

    def client(self, service):
        return Amqp(self.port, service)


class Pulsar:
    """A Pulsar of its own; TOOLHOST_TEST_PULSAR names the folder of its distribution."""

    def __init__(self, folder):
        self.home = pathlib.Path(os.environ["TOOLHOST_TEST_PULSAR"])
        self.folder = folder / "pulsar"
        self.folder.mkdir()
        self.port, self.admin = free_port(), free_port()
        mine = {"brokerServicePort": self.port, "webServicePort": self.admin, "bindAddress": "127.0.0.1",
                "listeningInterface": "lo"}
        lines = (self.home / "conf/standalone.conf").read_text().splitlines()
        lines = [line for line in lines if line.split("=")[0] not in mine]
        lines += [f"{key}={value}" for key, value in mine.items()]
        (self.folder / "standalone.conf").write_text("\n".join(lines) + "\n")
        self.start()

    def start(self):
        of = self.folder
        environment = os.environ | {
            "PULSAR_MEM": "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m", "PULSAR_GC": "-XX:+UseSerialGC",
            "PULSAR_GC_LOG": " ", "PULSAR_LOG_DIR": str(of / "logs"), "PULSAR_STANDALONE_CONF": str(of / "standalone.conf")}
        words = ["bin/pulsar", "standalone", "--no-functions-worker", "--no-stream-storage", "--advertised-address",
                 "127.0.0.1", "--metadata-dir", str(of / "meta"), "--bookkeeper-dir", str(of / "bk")]
        self.process = subprocess.Popen(words, cwd=self.home, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=(of / "out.log").open("a"), stderr=subprocess.STDOUT)
        wait_for("Pulsar is up", lambda: self.asked("GET", "clusters") == ["standalone"])
        wait_for("its tenant", lambda: self.asked("PUT", "tenants/tg", {"allowedClusters": ["standalone"]}))
        for space in ("request", "response"):
            wait_for("its namespaces", lambda: self.asked("PUT", f"namespaces/tg/{space}", {}))

    def asked(self, method, path, body=None):
        """What it says; True where it says nothing, or has it already."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=30)
        try:
            connection.request(method, f"/admin/v2/{path}", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            said = response.read()
        except OSError:
            return None
        finally:
            connection.close()
        if response.status in (204, 409):
            return True
        return json.loads(said) if response.status == 200 else None

    def stop(self):
        self.process.kill()
        self.process.wait()

    end = stop

    def url(self):
        return f"pulsar://127.0.0.1:{self.port}"

    def client(self, service):
        return PulsarClient(self.url(), service)


class Amqp:
    """Requests and replies over RabbitMQ. What was asked before the connection is lost may still be answered after."""

    def __init__(self, port, service, echo=False):
        import pika
        self.pika, self.port, self.came = pika, port, []
        self.ask, self.read = f"tg.request.{service}", f"tg.response.{service}"
        if echo:
            self.ask, self.read = self.read, self.ask
        self.echo, self.service = echo, service
        self.connect()

    def connect(self):
        pika = self.pika
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=60))
        self.channel = self.connection.channel()
        for exchange in (self.ask, self.read):
            self.channel.exchange_declare(exchange, "fanout", durable=True)
        if self.echo:
            named = self.channel.queue_declare(f"{self.read}.toolhost-request")
            self.channel.basic_qos(prefetch_count=64)
        else:
            named = self.channel.queue_declare("", exclusive=True, auto_delete=True)
        self.channel.queue_bind(named.method.queue, self.read)
        self.channel.basic_consume(named.method.queue, self.taken, auto_ack=not self.echo)

    def taken(self, channel, method, properties, body):
        if self.echo:
            channel.basic_publish(self.ask, "", answer(body), self.pika.BasicProperties(headers=properties.headers))
            channel.basic_ack(method.delivery_tag)
        else:
            self.came.append((properties.headers["id"], body))

    def send(self, ident, body):
        # As TrustGraph's clients set them.
        properties = self.pika.BasicProperties(headers={"id": ident}, content_type="application/json", delivery_mode=1)
        try:
            self.channel.basic_publish(self.ask, "", body, properties)
        except self.pika.exceptions.AMQPError:
            self.again()

    def take(self, seconds):
        """Replies that came meanwhile; it returns with the first."""
        try:
            self.connection.process_data_events(seconds)
        except self.pika.exceptions.AMQPError:
            self.again()
        came, self.came = self.came, []
        return came

    def again(self):
        def connected():
            try:
                self.connect()
            except (self.pika.exceptions.AMQPError, OSError):
                return False
            return True
        wait_for("RabbitMQ is back", connected)

    def end(self):
        self.connection.close()


class PulsarClient:
    """The same over Pulsar, whose own client connects again by itself."""

    def __init__(self, url, service, echo=False):
        import pulsar
        self.pulsar, self.came = pulsar, queue.SimpleQueue()
        self.client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        ask, read = (f"non-persistent://tg/{space}/{service}" for space in ("request", "response"))
        if echo:
            ask, read = read, ask
        self.producer = self.client.create_producer(ask, batching_enabled=False)
        of = {"subscription_name": "toolhost-request" if echo else f"bed-{os.getpid()}",
              "consumer_type": pulsar.ConsumerType.Shared if echo else pulsar.ConsumerType.Exclusive}
        self.consumer = self.client.subscribe(read, message_listener=self.echoed if echo else self.taken, **of)

    def taken(self, consumer, message):
        self.came.put((message.properties()["id"], message.data()))
        consumer.acknowledge(message)

    def echoed(self, consumer, message):
        self.send(message.properties()["id"], answer(message.data()))
        consumer.acknowledge(message)

    def send(self, ident, body):
        self.producer.send_async(body, lambda *sent: None, properties={"id": ident})

    def take(self, seconds):
        came = []
        try:
            came.append(self.came.get(timeout=seconds) if seconds else self.came.get_nowait())
            while True:
                came.append(self.came.get_nowait())
        except queue.Empty:
            return came

    def end(self):
        self.client.close()


def answer(body):
    """As a tool service answers that gives its arguments back."""
    arguments = json.loads(body)["arguments"]
    return json.dumps({"error": None, "response": arguments, "end_of_stream": True}).encode()


def request(tool, arguments):
    return json.dumps({"config": json.dumps({"tool": f"bed:{tool}"}), "arguments": json.dumps(arguments)}).encode()


class World:
    """A folder with tools, and the hosts that serve them. No tool of a real host lies below /tmp."""

    def __init__(self, toolhost):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="toolhost-brokers-", dir="/var/tmp"))
        self.root = self.folder / "root"
        self.toolhost = self.folder / "toolhost"
        shutil.copy(toolhost, self.toolhost)
        for name, (language, script, text) in TOOLS.items():
            of = self.root / "user_scripts" / name
            of.mkdir(parents=True)
            (of / script).write_text(text)
            manifest = {"toolId": f"bed:{name}", "displayName": name, "description": "Gives its input back.",
                        "version": "1.0.0", "parameters": {"type": "object", "properties": {"nonce": {"type": "string"}}},
                        "handler": {"type": "external-script", "language": language, "scriptPath": f"{name}/{script}"}}
            if name == "write":
                (of / "out").mkdir()
                manifest["securityContext"] = {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["./out/**"]}}
            (of / f"{name}.tool.json").write_text(json.dumps(manifest))
        policies = self.root / "sandbox-policies"
        policies.mkdir()
        (policies / "default.policy.toml").write_text(
            'name = "default"\nwhy = "a bench"\ntools = ["*"]\n[files]\nread = [{ path = "./**", why = "its own" }]\n')
        (policies / "write.policy.toml").write_text(
            'name = "write"\nwhy = "a bench"\ntools = ["bed:write"]\n[files]\nread = [{ path = "./**", why = "its own" }]\n'
            'write = [{ path = "./out/**", why = "one file for each call" }]\n')
        subprocess.run(["chmod", "-R", "go-w", str(self.root)], check=True)

    def written(self):
        return {file.stem for file in (self.root / "user_scripts/write/out").iterdir()}

    def end(self):
        shutil.rmtree(self.folder)


class Host:
    """One host: its own folder for state, a socket to ask it directly."""

    def __init__(self, world, name, url, service, at_once=8, tools=TOOLS):
        self.folder, self.world = world.folder / name, world
        self.folder.mkdir(exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        self.socket = str(self.folder / "http.sock")
        (self.folder / "config.toml").write_text(
            f'[[broker]]\nurl = "{url}"\nservice = "{service}"\ncaller = "bench"\nat_once = {at_once}\n'
            f'tools = {json.dumps([f"bed:{tool}" for tool in tools])}\n')
        (self.folder / "config.toml").chmod(0o600)
        self.start()

    def start(self):
        environment = os.environ | {"XDG_CACHE_HOME": str(self.folder / "cache"), "TMPDIR": str(self.folder / "tmp")}
        words = [str(self.world.toolhost), "--root", str(self.world.root), "--config", str(self.folder / "config.toml"),
                 "--audit-log", str(self.folder / "audit.jsonl"), "--log", "info", "serve", "--http", f"unix:{self.socket}"]
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL,
                                        stderr=(self.folder / "log").open("a"), start_new_session=True)
        wait_for("the host is ready", self.is_ready)

    def is_ready(self):
        if self.process.poll() is not None:
            raise SystemExit((self.folder / "log").read_text())
        try:
            return self.asked("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def asked(self, method, path, body=None):
        connection = Direct(self.socket)
        try:
            return connection.asked(method, path, body)
        finally:
            connection.close()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def log(self):
        return (self.folder / "log").read_text()

    def records(self):
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


class Direct(http.client.HTTPConnection):
    """A host, asked over its own socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)

    def asked(self, method, path, body=None):
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self.request(method, path, body, headers)
        response = self.getresponse()
        return response.status, response.read()


BROKERS = {"rabbitmq": Rabbit, "pulsar": Pulsar}

if __name__ == "__main__":
    # The broker's own echo: bed.py echo rabbitmq PORT SERVICE, until it is killed.
    _, _, kind, port, name = sys.argv
    if kind == "rabbitmq":
        served = Amqp(int(port), name, echo=True)
        print("ready", flush=True)
        served.channel.start_consuming()
    else:
        served = PulsarClient(f"pulsar://127.0.0.1:{port}", name, echo=True)
        print("ready", flush=True)
        signal.pause()
