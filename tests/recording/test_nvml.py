"""GPUs and links as the driver tells them through nvidia-ml-py: here a driver of our own."""

from types import SimpleNamespace
from typing import Any

from tests.support.selection import known
from traceprof.recording import nvml


class NvmlError(Exception):
    """What the library raises."""


class Driver:
    """Two GPUs with two NVLinks to each other, and one without any, behind another socket."""

    NVMLError = NvmlError
    NVML_NVLINK_MAX_LINKS = 4
    NVML_FEATURE_ENABLED = 1
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50

    def __init__(self, *, switched: bool = False) -> None:
        self.is_open = False
        self.switched = switched

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: 3,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlSystemGetDriverVersion": lambda: "550.54.14",
            "nvmlDeviceGetName": lambda _: b"NVIDIA A100-SXM4-40GB",  # as before version 11.5
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=f"00000000:0{gpu}:00.0"),
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 4,
            "nvmlDeviceGetCurrPcieLinkWidth": self._width,
            "nvmlDeviceGetNvLinkState": self._state,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda *_: 2 if self.switched else 0,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, _: SimpleNamespace(
                busId=f"00000000:0{1 - gpu}:00.0"
            ),
            "nvmlDeviceGetTopologyCommonAncestor": lambda *_: 50,
            "nvmlDeviceGetFieldValues": lambda *_: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=25_000))
            ],
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _width(self, gpu: int) -> int:
        if gpu == 2:
            raise NvmlError
        return 16

    def _state(self, gpu: int, link: int) -> int:
        if gpu == 2:
            raise NvmlError
        return int(link < 2)


def test_links_between_two_gpus() -> None:
    driver = Driver()
    asked = known(nvml.ask(driver))
    gpus, version, paths = asked
    assert version == "550.54.14"
    assert [gpu.name for gpu in gpus] == ["NVIDIA A100-SXM4-40GB"] * 3
    assert [gpu.peaks for gpu in gpus] == [{"nvlink": 50.0, "pcie": 31.5}] * 2 + [{}]
    assert paths == (("X", "NV2", "SYS"), ("NV2", "X", "SYS"), ("SYS", "SYS", "X"))
    assert not driver.is_open


def test_a_switch_leads_to_all() -> None:
    asked = known(nvml.ask(Driver(switched=True)))
    assert asked[2][0] == ("X", "NV2", "NV2")


def test_without_a_driver() -> None:
    driver = Driver()

    def fail() -> None:
        raise NvmlError

    driver.nvmlInit = fail  # type: ignore[method-assign]
    assert nvml.ask(driver) is None


def test_the_installed_library() -> None:
    asked = nvml.gpus()  # in most places that test there is no driver
    assert asked is None or len(asked) == 3
