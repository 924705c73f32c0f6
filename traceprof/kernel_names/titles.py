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
_WRAPPER = lazy(r"^(?:Binary|BUnary|AUnary|Unary|UnaryOp|BinaryOp)Functor$|^gpu_kernel_impl")


def kernel_title(name: str) -> str:
    """Return a kernel's function and, of a function that does many things, what it does here."""
    function = function_name(name)
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
