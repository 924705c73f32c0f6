"""Communication kernels: one table of name patterns, which the user can extend.

A kernel's name says that it communicates and, for most back ends, which operation it is. It never
says the protocol: since 2.8 NCCL compiles one kernel per operation and type and names it after the
LL protocol whatever runs inside (NCCL src/device/generate.py, `best_kernel`).

Readers see a kernel as its function, and what that does where the name says little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from traceprof.errors import UsageError

UNKNOWN_OPERATION = "Unknown"


class Pattern(NamedTuple):
    """One kind of communication kernel."""

    # a regular expression of the whole function name, without return type, template arguments and
    # parameters. A group named `operation` is the operation
    expression: str
    # the operation if the expression has no such group, or it matched nothing
    operation: str = UNKNOWN_OPERATION


_OPERATIONS = (
    "AllReduce|AllGatherV|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AlltoAll|Gather|Scatter"
)


PATTERNS: tuple[Pattern, ...] = (
    # NCCL >= 2.27, symmetric memory: ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16
    # NCCL >= 2.19: ncclDevKernel_AllReduce_Sum_bf16_RING_LL, ncclDevKernel_SendRecv
    # NCCL 2.8 to 2.18: ncclKernel_AllReduce_RING_LL_Sum_float
    Pattern(rf"nccl(?:Symk?Dev|Dev|)Kernel_(?P<operation>{_OPERATIONS})(?:_.*)?"),
    # NCCL 2.4 to 2.7: ncclAllReduceRingLLKernel_sum_f32, ncclSendRecvKernel_copy_i8
    Pattern(rf"nccl(?P<operation>{_OPERATIONS})(?:Ring|Tree|CollNet)?(?:LL128|LL)?Kernel_.*"),
    # NCCL with one rank and a scaling reduction (src/device/onerank.cu)
    Pattern(r"(?:.*::)?oneRankReduce", "AllReduce"),
    # The rest of NCCL, and RCCL's ncclDevKernel_Generic_4, which hides the operation
    Pattern(r"(?:.*::)?(?:nccl|rccl)\w*"),
    # PyTorch symmetric memory (torch/csrc/distributed/c10d/symm_mem), and fused with a norm
    Pattern(
        r"(?:.*::)?(?:multimem_|lamport_style_)?(?:one|two)_shot_(?:prenorm_)?all_reduce(?:_\w+)?",
        "AllReduce",
    ),
    Pattern(r"(?:.*::)?multimem_all_reduce(?:_\w+)?", "AllReduce"),
    Pattern(r"(?:.*::)?multimem_all_gather(?:_\w+)?", "AllGather"),
    Pattern(r"c10d::(?:nvshmem|nccl)_extension::(?:.*::)?allToAllV\w*", "AlltoAll"),
    Pattern(r"c10d::(?:(?:nvshmem|nccl)_extension|symmetric_memory)::.*"),
    # Custom all-reduce of vLLM, SGLang and AITER; of TensorRT-LLM and FlashInfer
    Pattern(r"(?:.*::)?cross_device_reduce_[12]stage(?:_\w+)?", "AllReduce"),
    Pattern(r"(?:.*::)?allreduce_prototype_(?:one|two)shot", "AllReduce"),
    Pattern(r"aiter::reduce_scatter_(?:cross_device|split)_\w+", "ReduceScatter"),
    Pattern(r"aiter::allgather_\w+", "AllGather"),
    Pattern(r"(?:.*::)?(?:one|two)(?:S|s)hotAll(?:R|r)educe(?:Fusion)?Kernel", "AllReduce"),
    Pattern(r"(?:.*::)?\w*allreduce_fusion_kernel\w*", "AllReduce"),
    # All-to-all of mixtures of experts: TensorRT-LLM and FlashInfer
    Pattern(r"(?:.*::)?(?:moe|helix)AllToAllKernel", "AlltoAll"),
    Pattern(r"(?:.*::)?moeA2A(?:Dispatch|Combine)Kernel", "AlltoAll"),
    # DeepEP, in whichever namespace it was built into
    Pattern(
        r"(?:.*::)?(?:internode|intranode|internode_ll)::"
        r"(?:dispatch|combine|notify_dispatch|cached_notify\w*)",
        "AlltoAll",
    ),
    Pattern(r"deep_ep::(?:.*::)?(?:hybrid_)?(?:dispatch|combine)_impl", "AlltoAll"),
    Pattern(r"deep_ep::.*"),
    # MORI, AMD's
    Pattern(r"mori::(?:.*::)?Ep(?:Dispatch|Combine)\w*", "AlltoAll"),
    Pattern(r"mori::.*"),
    # MSCCL and MSCCL++, whose plans are run by one kernel
    Pattern(r"mscclKernel_\w+|mscclpp::.*"),
    # NVSHMEM's own kernels
    Pattern(r"(?:.*::)?nvshmem\w*(?:::.*)?"),
    # Transformer Engine's user buffers (tensor-parallel overlap)
    Pattern(r"(?:.*::)?k?userbuffers_\w+"),
)


class CommunicationPatterns:
    """Recognises communication kernels and their operations by name."""

    def __init__(self, extra: Sequence[Pattern] = ()) -> None:
        """Put the user's own patterns before the built-in ones."""
        self._extra = tuple(extra)

    def operation(self, demangled_name: str) -> str | None:
        """Return the operation, `Unknown` where the name hides it, or None for compute."""
        function = function_name(demangled_name)
        for pattern in (*self._extra, *PATTERNS):
            match = re.fullmatch(pattern.expression, function)
            if match:
                return match.groupdict().get("operation") or pattern.operation
        return None

    def operations(self, names: Mapping[int, str]) -> dict[int, str]:
        """Return the operation of each communication kernel among names by id."""
        named = ((key, self.operation(name)) for key, name in names.items())
        return {key: operation for key, operation in named if operation is not None}


def user_patterns(texts: Iterable[str]) -> list[Pattern]:
    """Read patterns as users write them: `REGEX` or `REGEX=Operation`.

    Raises:
        UsageError: not a regular expression.
    """
    patterns = []
    for text in texts:
        expression, _, operation = text.partition("=")
        try:
            re.compile(expression)
        except re.error as error:
            raise UsageError(
                f"cannot use the kernel pattern {expression!r}",
                f"it is not a regular expression ({error})",
                "write it in the syntax of Python's re module, such as 'my_allreduce_.*=AllReduce'",
            ) from error
        patterns.append(Pattern(expression, operation or UNKNOWN_OPERATION))
    return patterns


_BRACKETS = re.compile("[<>()]")
# The beginning of the parameters: the type of a lambda among them names its operator().
_PARAMETERS = re.compile(r"(?<!operator)\(")


@cache  # until `categories.forget_names`
def function_name(demangled_name: str) -> str:
    """Return a kernel's qualified name without return type, template arguments and parameters.

    >>> function_name("void at::native::elementwise_kernel<4, Add<float>>(int, Add<float>)")
    'at::native::elementwise_kernel'
    """
    name = demangled_name
    for unnamed in ("(anonymous namespace)", "<unnamed>"):
        name = name.replace(unnamed, "{unnamed}")
    name = _without_templates(name)
    name = _PARAMETERS.split(name, maxsplit=1)[0].strip()
    return name.rpartition(" ")[2] or demangled_name


def _without_templates(text: str) -> str:
    """Remove what stands in <>; the text stays where brackets do not match."""
    if "<" not in text:
        return text
    opened: list[str] = []
    kept: list[str] = []
    after = 0  # the last bracket
    for bracket in _BRACKETS.finditer(text):
        char, start = bracket[0], bracket.start()
        if "<" not in opened:
            kept.append(text[after:start])
        after = start + 1
        if char == ")" and "(" in opened:
            # A comparison in parentheses, such as (8 > 0), opens and closes nothing outside them.
            while opened.pop() != "(":
                pass
        elif char == ">" and opened[-1:] != ["("]:
            if not opened:
                return text
            opened.pop()
            continue
        elif char in "<(":
            opened.append(char)
        if "<" not in opened:
            kept.append(char)
    return text if "<" in opened else "".join(kept) + text[after:]


# Functions that are named by a template argument: those of PyTorch, CUTLASS and cuDNN.
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply|^cutlass|^xmma_cudnn::")
_DETAIL = re.compile(
    r"\w*Functor\w*|\w+_kernel_(?:cuda|impl)\w*|\w+KernelImpl\w*|copy_device_to_device|\w+_functor"
    r"|_amp_foreach_\w+|\w*cutlass_\w+|(?:fprop|dgrad|wgrad|strided_dgrad)_indexed|FlashAttn\w+"
    r"|\b[A-Z]\w*Ops\b|\w+_kernel(?=\()"
)
_LENGTH = re.compile(r"\d{1,3}")  # of a part of a mangled name
_WRAPPER = re.compile(r"^(?:Binary|BUnary|AUnary|Unary|UnaryOp|BinaryOp)Functor$|^gpu_kernel")


def readable(function: str) -> str:
    """Return a function without the mangling of C++, that some traces leave.

    >>> readable("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi64EEvPT0_")
    'aiter::add_rmsnorm_quant_kernel'
    """
    if not function.startswith("_Z"):
        return function
    parts, at = list[str](), 3 if function.startswith("_ZN") else 2
    while length := _LENGTH.match(function, at):
        end = length.end() + int(length.group())
        parts.append(function[length.end() : end])
        at = end
    unnamed = ("{unnamed}" if part.startswith("_GLOBAL__N_") else part for part in parts)
    return "::".join(unnamed) or function


def kernel_title(name: str) -> str:
    """Return a kernel's function and, of a function that does many things, what it does here."""
    function = readable(function_name(name))
    arguments = name.partition("<")[2]
    details = _DETAIL.findall(arguments) if _GENERIC.search(function) else ()
    detail = next(
        (text for text in details if text not in function and not _WRAPPER.search(text)), None
    )
    return function if detail is None else f"{function}: {detail}"


def short_title(name: str) -> str:
    """Return the shortest text that says what a kernel does.

    >>> short_title("void at::native::elementwise_kernel<4, at::native::MulFunctor<float>>(int)")
    'MulFunctor'
    """
    function, _, detail = kernel_title(name).partition(": ")
    return detail or function.rpartition("::")[2]
