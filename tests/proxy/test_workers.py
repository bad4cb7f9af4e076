"""Several processes on one port, and their metrics as one exposition."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.proxy.rig import completion, expected

from twolane.proxy.conformance.caller import call
from twolane.proxy.fault_engine import FaultEngine
from twolane.proxy.workers import Board, merged

ONE = b"""# HELP a_total What.
# TYPE a_total counter
a_total 3.0
# HELP h Parts.
# TYPE h histogram
h_bucket{part="x",le="1.0"} 1.0
h_sum{part="x"} 0.5
"""


def test_families_stay_together_and_samples_say_whose_they_are(tmp_path: Path) -> None:
    text = merged({0: ONE, 1: ONE.replace(b"3.0", b"4.0")})
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    assert [(s.labels, s.value) for s in families["a"].samples] == [
        ({"worker": "0"}, 3.0), ({"worker": "1"}, 4.0),
    ]  # fmt: skip
    assert [s.labels["part"] for s in families["h"].samples] == ["x"] * 4
    assert text.count(b"# TYPE") == 2
    Board(tmp_path, 1).leave(ONE)
    assert Board(tmp_path, 0).with_others(ONE) == merged({0: ONE, 1: ONE})


async def test_two_workers_serve_one_port_and_end_together(tmp_path: Path) -> None:
    async with FaultEngine("aggregated") as engine:
        file = tmp_path / "proxy.yaml"
        file.write_text(f"aggregated: [{engine.url}]\n")
        argv = ["-m", "twolane", "proxy", "--config", str(file), "--port", "0", "--workers", "2"]
        one = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdout=-1, stderr=-1, env={"PYTHONPATH": "src"}
        )
        assert one.stdout is not None
        line = await asyncio.wait_for(one.stdout.readline(), 60)
        port = int(json.loads(line)["listening"].rpartition(":")[2])
        for number in range(16):
            prompt = f"number {number}"
            got = await (await call(port, completion(prompt))).answer(60)
            assert got.text == expected(prompt)
        one.send_signal(signal.SIGHUP)
        one.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(one.communicate(), 60)
        assert one.returncode == 0, said.decode()
