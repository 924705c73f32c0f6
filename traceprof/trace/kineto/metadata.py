"""Metadata of a trace: the file, the machine and the run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from traceprof.structs import Record
from traceprof.trace.model.special_values import FIRST_UTC_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

_VENDOR = "AMD"
_ROCM_MARKS = ("roctracer_version", "hip_runtime_version", "hip_driver_version")
_VERSIONS = (
    *("cuda_runtime_version", "cuda_driver_version", "cupti_version", "nccl_version"),
    *("hip_runtime_version", "hip_driver_version", "roctracer_version"),
    *("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"),
)
_MAX_INTEGER = 1 << 62


class _Device(Record, frozen=True):
    name: str | None  # its name
    capability: tuple[int, int] | None  # its compute capability, major and minor
    num_sms: int | None  # its multiprocessors


class Metadata:
    """Facts of a trace, each None or empty if the trace does not have it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Wrap the facts at the top of the document."""
        self._facts = facts

    @property
    def base_ns(self) -> int:
        """The origin of the times of events, in ns since 1970; 0 if they count from 1970."""
        return _integer(self._facts.get("baseTimeNanoseconds")) or 0

    @property
    def host_name(self) -> str | None:
        """The machine's name."""
        return _text(self._facts.get("host_name"))

    @property
    def schema_version(self) -> str | None:
        """The version of the document's schema."""
        version = _integer(self._facts.get("schemaVersion"))
        return None if version is None else str(version)

    @property
    def is_rocm(self) -> bool:
        """True for a trace of AMD's GPUs."""
        names = self.gpu_names
        return any(mark in self._facts for mark in _ROCM_MARKS) or any(
            name.startswith(_VENDOR) for name in names
        )

    @property
    def versions(self) -> dict[str, str]:
        """Versions of software by its name, and what the profiler was told to record."""
        facts = {**self._distributed, **self._facts}
        return {name.replace("_", " "): str(facts[name]) for name in _VERSIONS if facts.get(name)}

    @property
    def rank(self) -> int | None:
        """The rank of the process in its run."""
        rank = _integer(self._distributed.get("rank"))
        return rank if rank is not None and 0 <= rank < 1 << 31 else None

    def gpu_name(self, device: int) -> str | None:
        """Return the name of a device.

        AMD's GPUs are numbered otherwise in events than among those that the process sees: where it
        sees one kind, it is that.
        """
        of_device = self._device(device)
        return of_device.name if of_device else None

    def compute_capability(self, device: int) -> tuple[int, int] | None:
        """Return the compute capability of a device; AMD's GPUs have none."""
        of_device = None if self.is_rocm else self._devices.get(device)
        return of_device.capability if of_device else None

    def num_sms(self, device: int) -> int | None:
        """Return the number of multiprocessors of a device, numbered as for `gpu_name`."""
        of_device = self._device(device)
        return of_device.num_sms if of_device else None

    def _device(self, device: int) -> _Device | None:
        of_device, kinds = self._devices.get(device), set(self._devices.values())
        return kinds.pop() if of_device is None and len(kinds) == 1 else of_device

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The names of the GPUs that the process sees."""
        return tuple(device.name for device in self._devices.values() if device.name)

    def start_utc_ns(self, first_ns: int) -> int | None:
        """Start of the first event in ns since 1970, given it in trace time; None if unknown."""
        start = self.base_ns + first_ns
        return start if start >= FIRST_UTC_NS else None

    @property
    def world_size(self) -> int | None:
        """The number of processes of the run; None if unknown."""
        return _integer(self._distributed.get("world_size"))

    @cached_property
    def _distributed(self) -> Mapping[str, Any]:
        return _mapping(self._facts.get("distributedInfo"))

    @cached_property
    def _devices(self) -> dict[int, _Device]:
        listed = self._facts.get("deviceProperties")
        devices = {}
        for properties in map(_mapping, listed if isinstance(listed, list) else ()):
            device = _integer(properties.get("id"))
            major, minor = (
                _integer(properties.get(key)) for key in ("computeMajor", "computeMinor")
            )
            if device is not None:
                capability = None if major is None or minor is None else (major, minor)
                num_sms = _integer(properties.get("numSms")) or None
                devices[device] = _Device(_text(properties.get("name")), capability, num_sms)
        return devices


def _integer(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INTEGER:
        return value
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
