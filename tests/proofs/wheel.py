"""Proof that the built wheel is all one needs: in an empty environment a node starts, takes and hands out messages.

python -m tests.proofs.wheel
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.proofs.checks import Checks
from tests.proofs.client import Client, fin, pub
from tests.proofs.environment import PROJECT, Broken, Environment, clean, pip
from tests.proofs.process import Died, Process

MESSAGES = 100


def installed(path: Path, checks: Checks) -> Environment:
    """Build the wheel and install it, and what the lock pins, into an empty environment."""
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(path), str(PROJECT))
    wheels = [wheel.name for wheel in path.glob("*.whl")]
    checks.check(len(wheels) == 1, f"built {', '.join(wheels)}")
    environment = Environment(path / "environment")
    environment.install("--require-hashes", "--requirement", str(PROJECT / "requirements/run.lock"))
    environment.install("--no-deps", str(path / wheels[0]))
    place = environment.run("python", "-c", "import penstock; print(penstock.__file__)").strip()
    checks.check(place.startswith(str(environment.path)), "the empty environment imports it from itself")
    return environment


def speaks_nsq(process: Process, checks: Checks) -> None:
    """Publish and consume with an NSQ client."""
    producer, consumer = (Client(process.ports["nsq.tcp_port"]) for _ in range(2))
    bodies = [b"message %d" % number for number in range(MESSAGES)]
    for body in bodies:
        producer.command(pub("nsq", body))
    consumer.identify()
    consumer.subscribe("nsq", "audit", MESSAGES)
    received = [consumer.message() for _ in bodies]
    # The PUB behind the FINs is answered only when they are carried out.
    consumer.command(b"".join(fin(message.id) for message in received) + pub("other", b"x"))
    left = process.call("GET", "/topics/nsq/subscriptions/audit")
    producer.close()
    consumer.close()
    checks.check([message.body for message in received] == bodies, f"NSQ: {MESSAGES} messages out as they went in")
    checks.check(left["counts"]["acked"] == MESSAGES and left["depth"] == 0, "NSQ: all of them finished")


def speaks_by_command(environment: Environment, process: Process, checks: Checks) -> None:
    """Publish and consume with the program itself."""
    url = f"http://127.0.0.1:{process.ports['api.port']}"
    lines = "".join(f"line {number}\n" for number in range(MESSAGES))
    environment.run("penstock", "pub", "cli", "--url", url, text=lines)
    printed = environment.run("penstock", "sub", "cli", "first", "--max", str(MESSAGES), "--wait", "10s", "--url", url)
    checks.check(printed == lines, f"penstock pub, penstock sub: {MESSAGES} lines out as they went in")


def main() -> int:
    """Run the proof and print one line per check."""
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as name:
        path = Path(name)
        elsewhere = path / "elsewhere"
        elsewhere.mkdir()
        process = None
        try:
            environment = installed(path, checks)
            command = (str(environment.path / "bin" / "penstock"),)
            process = Process(path / "data", command=command, directory=elsewhere, variables=clean())
            process.start()
            checks.check(True, f"penstock up listens after {process.starts_s[0]:.1f} s")
            speaks_nsq(process, checks)
            speaks_by_command(environment, process, checks)
            code = process.stop()
            checks.check(code == 0, f"SIGTERM ends it with exit code {code}", process.last_words())
        except (Broken, Died) as error:
            checks.check(False, str(error))
        finally:
            if process is not None:
                process.abandon()
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
