"""Ways to damage a trace of torch.profiler, and what Python's `json` says of it."""

import gzip
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

from sample_traces.simulator import simulate_scenario
from sample_traces.simulator.kineto_writer import write_traces
from tests.support.fuzz.damage import Damage, noise
from traceprof.trace.open import open_trace

_VALUES = (
    *(b"NaN", b"-Infinity", b"null", b"true", b'""', b'"7"', b"[]", b"{}", b"-1", b"1e999", b"0.5"),
    *(b"1e300", b"9223372036854775808", b"-9223372036854775808", b"1700000000000000.125", b"-0"),
)
_PARTS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"},{", b'"traceEvents": [', b"\n", b"\0",
)  # fmt: skip
_NUMBER = re.compile(rb"(?<=: )-?\d[\d.]*")
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_KEY = re.compile(rb'"[\w ]+": ')
_NAME = re.compile(rb'(?<="name": ")[^\n]*?(?=", *"(?:ph|pid)": )')


def source(folder: Path) -> bytes:
    """Return a trace that is made for this; the folder is left as it was."""
    export = folder / "source.sqlite"
    truth = simulate_scenario("training", export)
    traces = write_traces(export, folder, "source")
    data = traces[0].read_bytes()
    for path in (export, truth, *traces):
        path.unlink()
    return data


def cut(data: bytearray, chosen: random.Random) -> None:
    del data[chosen.randrange(1, len(data)) :]


def lost_bytes(data: bytearray, chosen: random.Random) -> None:
    at = chosen.randrange(len(data))
    del data[at : at + chosen.choice((1, 2, 50, 5000))]


def repeated_bytes(data: bytearray, chosen: random.Random) -> None:
    at = chosen.randrange(len(data))
    data[at:at] = data[at : at + chosen.choice((1, 50, 5000))]


def other_values(data: bytearray, chosen: random.Random) -> None:
    for _ in range(chosen.choice((1, 5, 50))):
        match = _NUMBER.search(data, chosen.randrange(len(data)))
        if match is not None:
            data[slice(*match.span())] = chosen.choice(_VALUES)


def other_keys(data: bytearray, chosen: random.Random) -> None:
    keys = _KEY.findall(data)
    for _ in range(chosen.choice((1, 5, 50))):
        match = _KEY.search(data, chosen.randrange(len(data)))
        if match is not None:
            data[slice(*match.span())] = chosen.choice(keys)


def more_parts(data: bytearray, chosen: random.Random) -> None:
    for _ in range(chosen.choice((1, 1, 3))):
        at = chosen.randrange(len(data))
        data[at:at] = chosen.choice(_PARTS)


DAMAGES: tuple[Damage, ...] = (
    noise, cut, lost_bytes, repeated_bytes, other_values, other_keys, more_parts,
)  # fmt: skip


def damaged(data: bytes, chosen: random.Random) -> tuple[bytes, str]:
    """Damage a trace; return it, packed or not, and how it was damaged."""
    whole = bytearray(data)
    damage = chosen.choice(DAMAGES)
    if chosen.random() < 0.2:  # what is packed is damaged itself
        whole = bytearray(gzip.compress(data, 1))
        damage = chosen.choice((noise, cut, lost_bytes, repeated_bytes))
        damage(whole, chosen)
        return bytes(whole), f"packed {damage.__name__}"
    damage(whole, chosen)
    return bytes(whole), damage.__name__


def refused_by_json(path: Path) -> str | None:
    """Say whether `json` refuses a trace that traceprof has read as if it was whole.

    Or whether both count other numbers of kernels.
    """
    trace = open_trace(path)
    if any("cut short" in note for note in trace.notes):
        return None
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = zlib.decompressobj(31).decompress(data)
    if any("did not escape: repaired" in note for note in trace.notes):
        data = _ESCAPE.sub(lambda found: found[0] if found[1] else b"\\\\", data)
        data = _NAME.sub(lambda found: re.sub(rb'(?<!\\)"', b'\\\\"', found[0]), data)
    try:
        document, _ = json.JSONDecoder(strict=False).raw_decode(
            data.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        )
    except ValueError as error:
        return f"accepted, and json says: {error}"
    events = document if isinstance(document, list) else document.get("traceEvents")
    kernels = [event for event in events or () if _is_kernel(event)]
    num = sum(len(operations.kernels) for operations in trace.operations.values())
    unusable = sum(int(note.split()[0]) for note in trace.notes if "left out" in note)
    if not num <= len(kernels) <= num + unusable:
        return f"{num} kernels, {unusable} events left out; by json {len(kernels)} kernels"
    return None


def _is_kernel(event: Any) -> bool:
    return isinstance(event, dict) and (event.get("ph"), event.get("cat")) == ("X", "kernel")
