"""What the model takes from the library and from measurements, in seconds."""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

COSTS = Path(__file__).with_name("costs.json")
KINDS = ("FETCH", "ACK", "FAIL", "BEAT")


@dataclass
class Inputs:
    grace_period: float = 30.0
    stop_timeout: float = 5.0
    heartbeat_interval: float = 5.0
    poll_interval: float = 1.0
    visibility_timeout: float = 30.0
    request_timeout: float = 5.0
    concurrency: int = 10
    last_beat_time: float = 0.5  # of stop_timeout
    # The next four have no name in the library: send_last(), try_deadline() and request_beat_soon() contain them.
    last_beat_timeout: float = 0.5
    last_beat_pause: float = 0.05
    min_try_time: float = 0.1
    max_request_gap: float = 1.0
    # Per step of a back-off, samples of the delay; the last step repeats.
    fetch_backoff: list = field(default_factory=lambda: [[1.0]])
    report_backoff: list = field(default_factory=lambda: [[1.0]])
    # Samples: the delay after a Retry-After of 1 s, and the gap after the first heartbeat as a part of the interval.
    retry_after: list = field(default_factory=lambda: [1.0])
    first_gap: list = field(default_factory=lambda: [1.0])
    costs: dict = field(default_factory=lambda: dict.fromkeys(KINDS, 1.0))  # of a request, relative


def in_seconds(value):
    return [in_seconds(each) for each in value] if isinstance(value, list) else value / 1000


def read_inputs(program):
    """Of what build/fleet_defaults prints, and of costs.json."""
    if not Path(program).exists():
        raise SystemExit(f"{program} is missing: make {program}")
    printed = json.loads(subprocess.run([program], capture_output=True, check=True, text=True).stdout)
    concurrency = printed.pop("concurrency")
    values = {name: in_seconds(value) for name, value in printed.items()}
    values["first_gap"] = [gap / values["heartbeat_interval"] for gap in values["first_gap"]]
    return Inputs(**values, concurrency=concurrency, costs=json.loads(COSTS.read_text())["microseconds"])
