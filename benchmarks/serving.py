"""Load and attack tfm serve, stop it under load, and time it beside LibreTranslate's server.

    python benchmarks/serving.py abuse MODEL      # hostile requests beside an honest client
    python benchmarks/serving.py memory MODEL     # the memory over mixed requests
    python benchmarks/serving.py stop MODEL       # SIGTERM under load
    python benchmarks/serving.py compare MODEL --package translate.argosmodel --rival PYTHON

MODEL translates from English to German. Each prints Markdown. "compare" starts both servers, and
sends requests of one line to each in turn; PYTHON is an interpreter with libretranslate.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hostile import KINDS, PAIR, Hostile

ROOT = Path(__file__).parents[1]
_LONGEST_SECONDS = 90  # that an answer may take: longer is a hang
_TEXTS = (
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two dogs are playing in the snow.",
    "A little girl climbs into a wooden playhouse.",
)


class Server:
    """A server in a process, at a free port."""

    def __init__(self, command: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], cwd=ROOT, stdout=self.errors, stderr=self.errors
        )
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{command[0]} does not serve:\n{self.log()}")
            time.sleep(0.2)

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, which opens with the first request."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_LONGEST_SECONDS)

    def log(self) -> str:
        """Return what the server has printed."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_LONGEST_SECONDS)

    def memory(self, name: str = "VmRSS") -> float:
        """Return the memory of the process in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the process has used."""
        status = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        user, system = status.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def tfm(model: str, *flags: str) -> list[str]:
    """Return the command that serves a model."""
    return [sys.executable, "-m", "tfm", "serve", model, "--device", "cpu", *flags]


@contextlib.contextmanager
def serving(command: Sequence[str]) -> Iterator[Server]:
    """Run a server until the end of the block."""
    server = Server(command)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def translate(connection: http.client.HTTPConnection, text: str) -> tuple[int, str]:
    """Return the status and the translation of a text."""
    body = json.dumps({"q": text, **PAIR})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    is_right = answer.status == 200
    return answer.status, json.loads(content)["translatedText"] if is_right else content.decode()


def send(server: Server, hostile: Hostile) -> str:
    """Send a hostile request; return the status, or what happened instead."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), _LONGEST_SECONDS) as connection:
            if hostile.is_slow:
                until = time.monotonic() + 2
                for position in range(len(hostile.data)):
                    connection.sendall(hostile.data[position : position + 1])
                    time.sleep(0.02)
                    if time.monotonic() > until:
                        break
            else:
                connection.sendall(hostile.data)
            if hostile.is_left:
                return "left"
            answer = b""
            while len(answer) < 12 and (part := connection.recv(65_536)):
                answer += part
            while connection.recv(65_536):
                pass
    except TimeoutError:
        return "hang"
    except OSError:
        return "closed"
    return answer[9:12].decode("latin-1") or "closed"


def mixed(draw: random.Random, number: int, *, costly: bool) -> list[tuple[str, Hostile]]:
    """Return hostile requests, with the names of their kinds."""
    weights = {kind: weight for kind, weight in KINDS.items() if costly or weight > 1}
    chosen = draw.choices(list(weights), list(weights.values()), k=number)
    return [(kind.__name__, kind(draw)) for kind in chosen]


def abuse(arguments: argparse.Namespace) -> None:
    """Send hostile requests while an honest client translates."""
    with serving(tfm(arguments.model, "--threads", arguments.threads)) as server:
        honest = server.connect()
        expected = {text: translate(honest, text) for text in _TEXTS}
        alone = [_seconds(lambda: translate(honest, _TEXTS[0])) for _ in range(30)]
        seconds, wrong, is_over = list[float](), 0, threading.Event()

        def translate_honestly() -> None:
            nonlocal wrong
            while not is_over.is_set():
                text = _TEXTS[len(seconds) % len(_TEXTS)]
                started = time.monotonic()
                wrong += translate(honest, text) != expected[text]
                seconds.append(time.monotonic() - started)

        thread = threading.Thread(target=translate_honestly)
        thread.start()
        requests = mixed(random.Random(arguments.seed), arguments.number, costly=True)
        with ThreadPoolExecutor(arguments.clients) as clients:
            results = list(clients.map(lambda each: send(server, each[1]), requests))
        is_over.set()
        thread.join()
        by_kind: dict[str, Counter[str]] = {}
        for (kind, _), result in zip(requests, results, strict=True):
            by_kind.setdefault(kind, Counter())[result] += 1
        print("| requests | answers |\n|---|---|")
        for kind, counts in sorted(by_kind.items()):
            print(f"| {kind} | {', '.join(f'{n} × {each}' for each, n in counts.most_common())} |")
        log = server.log()
        print(
            f"\n{len(results)} hostile requests: {results.count('500')} × 500, "
            f"{results.count('hang')} hang, {log.count('Traceback')} tracebacks; "
            f"{wrong} of {len(seconds)} honest requests wrong, median "
            f"{1000 * statistics.median(seconds):.0f} ms, longest {max(seconds):.1f} s, alone "
            f"{1000 * statistics.median(alone):.0f} ms; peak memory {server.memory('VmHWM'):.0f} MB"
        )
        if "Traceback" in log:
            print(log[-5_000:])


def memory(arguments: argparse.Namespace) -> None:
    """Print the memory after each tenth of mixed requests, half of them hostile."""
    draw = random.Random(arguments.seed)
    with serving(tfm(arguments.model, "--threads", arguments.threads)) as server:
        print(f"| requests | memory in MB |\n|---|---|\n| 0 | {server.memory():.0f} |")
        step = arguments.number // 10
        for done in range(step, arguments.number + 1, step):
            hostile = mixed(draw, step // 2, costly=False)

            def honest(number: int) -> None:
                text = " ".join(_TEXTS[each % 3] for each in range(number, number + 1 + number % 5))
                with contextlib.closing(server.connect()) as connection:
                    translate(connection, text)

            with ThreadPoolExecutor(arguments.clients) as clients:
                list(clients.map(lambda each: send(server, each[1]), hostile))
                list(clients.map(honest, range(step // 2)))
            print(f"| {done:,} | {server.memory():.0f} |", flush=True)


def stop(arguments: argparse.Namespace) -> None:
    """Send SIGTERM while clients translate, each request on a new connection."""
    print("| answered | refused | lost | exit code |\n|---|---|---|---|")
    for _ in range(arguments.rounds):
        with serving(tfm(arguments.model, "--threads", arguments.threads)) as server:

            def ask(server: Server = server) -> Counter[str]:
                """Translate until a connection is refused; count the results."""
                counts: Counter[str] = Counter()
                while not counts["refused"] and not counts["lost"]:
                    connection = server.connect()
                    try:
                        connection.connect()
                    except OSError:
                        counts["refused"] += 1
                        continue
                    with contextlib.closing(connection):
                        try:
                            status, _ = translate(connection, " ".join(_TEXTS * 3))
                            counts["answered" if status == 200 else "lost"] += 1
                        except (OSError, http.client.HTTPException):
                            counts["lost"] += 1
                return counts

            with ThreadPoolExecutor(arguments.clients) as clients:
                asked = [clients.submit(ask) for _ in range(arguments.clients)]
                time.sleep(3)
                code = server.stop()
                total = sum((each.result() for each in asked), Counter[str]())
            columns = (total[each] for each in ("answered", "refused", "lost"))
            print(f"| {' | '.join(map(str, columns))} | {code} |", flush=True)


def compare(arguments: argparse.Namespace) -> None:
    """Time both servers in turn, with the same model, search and number of threads."""
    lines = Path(arguments.lines).read_text(encoding="utf-8").splitlines()[: arguments.number]
    search = ("--beam", "4", "--length-penalty", "0.2", "--precision", "fp32")
    rival = [arguments.rival, str(ROOT / "benchmarks" / "libretranslate_server.py")]
    commands = {
        "tfm serve": tfm(arguments.model, "--threads", arguments.threads, *search),
        "LibreTranslate": [*rival, arguments.package, "--threads", arguments.threads],
    }
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(serving(each)) for name, each in commands.items()}
        first = {name: _results(server, lines[:50], 4) for name, server in servers.items()}
        texts = [[text for _, _, text in results] for results in first.values()]
        num_equal = sum(map(str.__eq__, *texts))
        print(f"{num_equal} of {len(texts[0])} translations are equal.\n")
        columns = ("requests/s", "median, ms", "95th percentile, ms", "CPU ms a request", "failed")
        print(f"| clients | server | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}")
        for num_clients in arguments.clients_of_rounds:
            rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in servers}
            for _ in range(arguments.rounds):
                for name, server in servers.items():
                    rounds[name].append(_timed(server, lines, num_clients))
            for name, each in rounds.items():
                numbers = map(statistics.median, zip(*each, strict=True))
                shown = " | ".join(f"{number:.3g}" for number in numbers)
                print(f"| {num_clients} | {name} | {shown} |", flush=True)


def _timed(server: Server, lines: Sequence[str], num_clients: int) -> tuple[float, ...]:
    """Return the columns of a row."""
    started, before = time.monotonic(), server.cpu_seconds()
    results = _results(server, lines, num_clients)
    duration = time.monotonic() - started
    cpu = 1000 * (server.cpu_seconds() - before) / len(results)
    seconds = sorted(1000 * each for _, each, _ in results)
    failed = sum(status != 200 for status, _, _ in results)
    last = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    return len(results) / duration, statistics.median(seconds), last, cpu, failed


def _results(
    server: Server, lines: Sequence[str], num_clients: int
) -> list[tuple[int, float, str]]:
    """Return the status, the seconds and the translation of each line; clients keep connections."""

    def ask(own: Sequence[str]) -> list[tuple[int, float, str]]:
        results = []
        with contextlib.closing(server.connect()) as connection:
            for line in own:
                started = time.monotonic()
                status, text = translate(connection, line)
                results.append((status, time.monotonic() - started, text))
        return results

    with ThreadPoolExecutor(num_clients) as clients:
        shares = [lines[client::num_clients] for client in range(num_clients)]
        found = list(clients.map(ask, shares))
    return [found[index % num_clients][index // num_clients] for index in range(len(lines))]


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("abuse", "memory", "stop", "compare"))
    parser.add_argument("model")
    parser.add_argument("--number", type=int, help="of requests, or of lines")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--clients-of-rounds", type=int, nargs="+", default=(1, 4, 16, 64))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", default="1", help="with which a server computes")
    parser.add_argument("--lines", help="English text, one line a request")
    parser.add_argument("--package", help="of the model, by tfm export --format argos")
    parser.add_argument("--rival", help="a Python interpreter with libretranslate")
    arguments = parser.parse_args()
    defaults = {"abuse": 2_000, "memory": 10_000, "stop": 0, "compare": 400}
    arguments.number = arguments.number or defaults[arguments.command]
    {"abuse": abuse, "memory": memory, "stop": stop, "compare": compare}[arguments.command](
        arguments
    )


if __name__ == "__main__":
    main()
