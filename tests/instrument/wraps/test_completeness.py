"""Whatever this PyTorch can move data with is named, under every name, and everything comes back.

The lists of what is not wrapped are of what moves no data: a function that PyTorch adds fails the
test until somebody has decided on it.
"""

import inspect
import pickle
import sys
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.dataloader import _BaseDataLoaderIter

import instrument
from instrument import wraps
from instrument.core import calls
from instrument.switch import PARTS
from instrument.wraps import collectives, point_to_point, process_groups, steps, tensor_copies
from instrument.wraps import functional as our_functional

FUNCTIONS = (FunctionType, BuiltinFunctionType)

NO_COMMUNICATION = {
    *("destroy_process_group", "init_process_group", "new_group", "new_subgroups"),
    *("new_subgroups_by_enumeration", "shrink_group", "split_group"),
    *("get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device"),
    *("get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count"),
    *("get_process_group_ranks", "get_rank", "get_world_size"),
    *("is_backend_available", "is_gloo_available", "is_initialized", "is_mpi_available"),
    *("is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available"),
    *("record_comm", "supports_complex"),
}

NO_COMMUNICATION_OF_GROUPS = {
    *("abort", "boxed", "get_group_store", "merge_remote_group", "name", "rank", "set_timeout"),
    *("shutdown", "size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous"),
}


def functions(names: list[str], module: Any) -> set[str]:
    return {name for name in names if type(getattr(module, name)) in FUNCTIONS}


def held(module_names: set[str]) -> dict[tuple[str, str], object]:
    """Return what can be called that the modules hold under each name."""
    return {
        (module, name): value
        for module in module_names
        for name, value in getattr(sys.modules[module], "__dict__", {}).items()
        if callable(value)
    }


def methods() -> dict[tuple[str, str], object]:
    """Return what the classes hold under each name, and the step that SGD's runs."""
    classes = (
        *(dist.ProcessGroup, dist.Work, dist.P2POp, DistributedDataParallel, torch.Tensor),
        *(torch.nn.Module, torch.optim.Optimizer, torch.optim.SGD, _BaseDataLoaderIter),
    )
    cell = steps._cell_of_step(vars(torch.optim.SGD)["step"])
    assert cell is not None
    return {("SGD", "inside of step"): cell.cell_contents} | {
        (class_.__name__, name): value for class_ in classes for name, value in vars(class_).items()
    }


def test_every_function_of_torch_distributed() -> None:
    ours = {*collectives.PARAMETERS, *point_to_point.PARAMETERS, "batch_isend_irecv"}
    public = functions(distributed_c10d.__all__, distributed_c10d)
    assert public - NO_COMMUNICATION <= ours
    assert not ours & NO_COMMUNICATION


def test_every_functional_collective() -> None:
    public = {
        name
        for name, value in vars(functional).items()
        if inspect.isfunction(value)
        and value.__module__ == functional.__name__
        and not name.startswith("_")
        # For autograd and torch.compile, which call them themselves.
        and not name.endswith(("_backward", "_setup_context", "_inplace"))
    }
    others = {"wait_tensor", "allow_inflight_collective_as_graph_input_ctx"}
    assert public - others <= our_functional.PARAMETERS.keys()


def test_parameters_are_those_of_the_functions() -> None:
    for modules, table in (
        ((distributed_c10d, dist), collectives.PARAMETERS | point_to_point.PARAMETERS),
        ((functional,), our_functional.PARAMETERS),
    ):
        for name, function in calls.originals(modules, table).items():
            parameters = table[name]
            given = {*(parameters.names or inspect.signature(function).parameters)}
            assert {parameters.message, parameters.direction} - {""} <= given
            assert given & {"group", "process_group"}


def test_every_method_of_a_group() -> None:
    public = {
        name
        for name in vars(dist.ProcessGroup)
        if not name.startswith("_") and callable(getattr(dist.ProcessGroup, name))
    }
    known = NO_COMMUNICATION_OF_GROUPS | {"BackendType", *process_groups.METHODS}
    assert public <= known


def test_all_are_wrapped_under_all_names_and_all_come_back(recorded: list[str]) -> None:
    torch.optim.SGD([torch.ones(1)])  # PyTorch wraps a class's step with its first object
    instrument.enable()
    instrument.disable()  # has imported what it needs
    modules = {name for name in list(sys.modules) if name.split(".")[0] != "instrument"}
    before, before_of_classes = held(modules), methods()
    torch_run_backward = before["torch.autograd.graph", "_engine_run_backward"]
    instrument.enable()
    during = held(modules)
    communication = functions(distributed_c10d.__all__, distributed_c10d) - NO_COMMUNICATION
    for name in communication:
        original, wrapper = before["torch.distributed", name], getattr(dist, name)
        assert wrapper is not original
        assert {id(during[key]) for key, value in before.items() if value is original} == {
            id(wrapper)
        }
    changed = {key for key, value in methods().items() if value is not before_of_classes.get(key)}
    of_groups = {("ProcessGroup", name) for name in process_groups.METHODS}
    assert changed - of_groups == {
        *(("Work", "wait"), ("Work", "synchronize"), ("P2POp", "op"), ("SGD", "inside of step")),
        *(("Module", "__call__"), ("Optimizer", "profile_hook_step")),
        *(("DistributedDataParallel", "_pre_forward"), ("_BaseDataLoaderIter", "__next__")),
        ("DistributedDataParallel", "_register_builtin_comm_hook"),
        *(("Tensor", name) for name in tensor_copies.LABELS),
    }
    assert during["torch.autograd.graph", "_engine_run_backward"] is not torch_run_backward
    instrument.disable()
    after = held(modules)
    assert after.keys() == before.keys()
    assert [key for key in before if after[key] is not before[key]] == []
    assert methods().keys() == before_of_classes.keys()
    assert all(methods()[key] is value for key, value in before_of_classes.items())


def test_a_module_that_is_imported_meanwhile_has_the_originals_afterwards(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = dist.all_reduce
    instrument.enable()
    module = type(sys)("imported_meanwhile")
    module.reduce_all = dist.all_reduce  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "imported_meanwhile", module)
    assert module.reduce_all is not original
    instrument.disable()
    assert module.reduce_all is original


def test_wrappers_look_like_the_originals(recorded: list[str]) -> None:
    original = dist.all_reduce
    signature = inspect.signature(original)
    instrument.enable()
    assert inspect.isfunction(dist.all_reduce)
    assert inspect.signature(dist.all_reduce) == signature
    assert dist.all_reduce.__doc__ == original.__doc__
    assert (dist.all_reduce.__module__, dist.all_reduce.__qualname__) == (
        original.__module__,
        original.__qualname__,
    )
    assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce  # noqa: S301
    held = pickle.dumps(dist.all_reduce)
    instrument.disable()
    assert pickle.loads(held) is original  # noqa: S301


def test_every_wrapper_is_installed() -> None:
    modules = Path(*wraps.__path__).glob("[!_]*.py")
    assert {*PARTS} == {f"instrument.wraps.{module.stem}" for module in modules}
