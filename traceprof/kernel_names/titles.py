"""Names of kernels as readers see them: the function, and what it does where that says little."""

from __future__ import annotations

from traceprof.kernel_names import function_name
from traceprof.patterns import lazy

# Functions that are named by a template argument: those of PyTorch, CUTLASS and cuDNN.
_GENERIC = lazy(r"elementwise_kernel|reduce_kernel|multi_tensor_apply|^cutlass|^xmma_cudnn::")
_DETAIL = lazy(
    r"\w*Functor\w*|\w+_kernel_(?:cuda|impl)\w*|\w+KernelImpl\w*|copy_device_to_device|\w+_functor"
    r"|_amp_foreach_\w+|\w*cutlass_\w+|(?:fprop|dgrad|wgrad|strided_dgrad)_indexed|FlashAttn\w+"
)
_LENGTH = lazy(r"\d{1,3}")  # of a part of a mangled name
_WRAPPER = lazy(r"^(?:Binary|BUnary|AUnary|Unary|UnaryOp|BinaryOp)Functor$|^gpu_kernel_impl")


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
