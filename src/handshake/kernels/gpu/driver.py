"""A GPU by NVIDIA, through the driver's own library: nothing needs to be installed beside the driver."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from llvmlite import ir

from handshake.errors import HandshakeError, UnsupportedError
from handshake.kernels.gpu.target import THREADS, PtxTarget, Target

Array = np.ndarray[Any, Any]
_LEAST_DRIVER = 12000
_OUT_OF_MEMORY, _BAD_IMAGE, _BAD_PTX = 2, 200, 218
_LOST = {46: "it is unavailable", 79: "it is not responding", 214: "of an uncorrectable memory error",
         700: "a kernel read or wrote outside of its memory", 702: "a kernel took too long",
         716: "of a misaligned address", 719: "a kernel failed", 999: "of an unknown error"}  # fmt: skip


_U64, _U32, _POINTER, _SIZE = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t
_SIGNATURES = {
    "cuLaunchKernel": (_POINTER, *[_U32] * 7, _POINTER, _POINTER, _POINTER),
    "cuMemAlloc_v2": (_POINTER, _SIZE), "cuMemFree_v2": (_U64,), "cuMemHostAlloc": (_POINTER, _SIZE, _U32),
    "cuMemcpyHtoDAsync_v2": (_U64, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _U64, _SIZE, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_U64, _U64, _SIZE, _POINTER),
    "cuMemsetD8Async": (_U64, ctypes.c_ubyte, _SIZE, _POINTER),
}  # fmt: skip
"""Arguments of the calls that take whole numbers."""


class DeviceError(HandshakeError):
    """A GPU that is missing, too old, full, or lost."""


class Launchable(Protocol):
    """A compiled kernel."""

    def __call__(self, grid: tuple[int, int], args: Sequence[int]) -> None:
        """Start it on a grid of blocks."""


class Device(Protocol):
    """The operations of a GPU that a join uses.

    Addresses are whole numbers. Calls run in the order in which they come.
    """

    name: str
    target: Target

    def load(self, module: ir.Module, name: str, blocks: int = 2) -> Launchable:
        """Compile a kernel of a module, with registers for `blocks` blocks on a multiprocessor."""

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes of zeros."""

    def free(self, address: int) -> None:
        """Give memory back."""

    def memory(self) -> tuple[int, int]:
        """Return how many bytes are free, and how many there are."""

    def upload(self, address: int, source: int, size: int) -> None:
        """Copy bytes of this process to the device; the source may change after the call."""

    def download(self, *copies: tuple[Array, int]) -> None:
        """Copy from addresses of the device into arrays, after all that was started before."""

    def fetch(self, target: Array, address: int) -> None:
        """Copy bytes of the device, which no kernel writes now, into an array; kernels run meanwhile."""

    def move(self, target: int, source: int, size: int) -> None:
        """Copy bytes within the device."""

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes of the device."""

    def host_array(self, size: int) -> Array:
        """Return bytes of this process that the device copies to at full speed."""


class Gpu:
    """The first GPU of this machine, in its primary context, on streams of its own."""

    def __init__(self) -> None:
        self._cuda = _library()
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._do("cuDeviceGet", ctypes.byref(handle), 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._context = context
        self._do("cuCtxSetCurrent", context)
        self._stream, self._copies = ctypes.c_void_p(), ctypes.c_void_p()
        for stream in (self._stream, self._copies):
            self._do("cuStreamCreate", ctypes.byref(stream), 1)
        text = ctypes.create_string_buffer(256)
        self._do("cuDeviceGetName", text, 256, handle)
        self.name = text.value.decode()
        capability = (self._attribute(75, handle), self._attribute(76, handle))
        if capability < (7, 0):
            raise DeviceError(
                f"the GPU {self.name} has compute capability {capability[0]}.{capability[1]}, and 7.0 is "
                'needed at least; use device="cpu"'
            )
        self.target: Target = PtxTarget(capability)

    def _attribute(self, number: int, handle: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._do("cuDeviceGetAttribute", ctypes.byref(value), number, handle)
        return value.value

    def _do(self, name: str, *args: Any) -> None:
        code = getattr(self._cuda, name)(*args)
        if code:
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> DeviceError:
        if code == _OUT_OF_MEMORY:
            free, total = self.memory()
            return DeviceError(
                f"the memory of the GPU {self.name} is exhausted: {size(free)} of {size(total)} are free, "
                'and other processes may hold the rest; use shorter windows, or device="cpu"'
            )
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(code, ctypes.byref(text))
        said = (text.value or b"unknown error").decode()
        if code in _LOST:
            return DeviceError(
                f"the GPU was lost, because {_LOST[code]} ({said}); the join is closed: start it again in a "
                "new process"
            )
        return DeviceError(f"the GPU's driver refused {name}: {said} (error {code})")

    def enter(self) -> None:
        """Use the device in this thread."""
        self._do("cuCtxSetCurrent", self._context)

    def load(self, module: ir.Module, name: str, blocks: int = 2) -> Launchable:
        """Compile a kernel of a module, with registers for `blocks` blocks on a multiprocessor."""
        assert isinstance(self.target, PtxTarget)
        text = self.target.emit(module, blocks).encode() + b"\0"
        loaded, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(loaded), text)
        self._do("cuModuleGetFunction", ctypes.byref(function), loaded, name.encode())
        return _Kernel(self, function)

    def launch(self, function: ctypes.c_void_p, grid: tuple[int, int], places: Any) -> None:
        """Start a kernel whose arguments are at these places."""
        self._do("cuLaunchKernel", function, *grid, 1, THREADS, 1, 1, 0, self._stream, places, None)

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes of zeros."""
        address = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(address), size)
        self.fill(address.value, 0, size)
        return address.value

    def free(self, address: int) -> None:
        """Give memory back, after all that was started before."""
        self._do("cuStreamSynchronize", self._stream)
        self._do("cuMemFree_v2", address)

    def memory(self) -> tuple[int, int]:
        """Return how many bytes are free, and how many there are."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def upload(self, address: int, source: int, size: int) -> None:
        """Copy bytes of this process to the device; the source may change after the call."""
        self._do("cuMemcpyHtoDAsync_v2", address, source, size, self._stream)

    def download(self, *copies: tuple[Array, int]) -> None:
        """Copy from addresses of the device into arrays, after all that was started before."""
        for target, address in copies:
            self._copy_out(target, address, self._stream)
        self._do("cuStreamSynchronize", self._stream)

    def fetch(self, target: Array, address: int) -> None:
        """Copy bytes of the device, which no kernel writes now, into an array; kernels run meanwhile."""
        self._copy_out(target, address, self._copies)
        self._do("cuStreamSynchronize", self._copies)

    def _copy_out(self, target: Array, address: int, stream: ctypes.c_void_p) -> None:
        if target.nbytes:
            self._do("cuMemcpyDtoHAsync_v2", target.ctypes.data, address, target.nbytes, stream)

    def move(self, target: int, source: int, size: int) -> None:
        """Copy bytes within the device."""
        self._do("cuMemcpyDtoDAsync_v2", target, source, size, self._stream)

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes of the device."""
        self._do("cuMemsetD8Async", address, byte, size, self._stream)

    def host_array(self, size: int) -> Array:
        """Return bytes of this process that the device copies to at full speed."""
        place = ctypes.c_void_p()
        self._do("cuMemHostAlloc", ctypes.byref(place), size, 1)
        assert place.value is not None
        held = (ctypes.c_uint8 * size).from_address(place.value)
        found: Array = np.ctypeslib.as_array(held)
        weakref.finalize(held, self._cuda.cuMemFreeHost, ctypes.c_void_p(place.value)).atexit = False
        return found


class _Kernel:
    """A compiled kernel, and memory for its arguments: words of 64 bits, which a launch copies."""

    def __init__(self, device: Gpu, function: ctypes.c_void_p) -> None:
        self._device, self._function = device, function
        self._values, self._places = np.empty(0, np.int64), np.empty(0, np.int64)

    def __call__(self, grid: tuple[int, int], args: Sequence[int]) -> None:
        if len(args) != len(self._values):
            self._values = np.empty(len(args), np.int64)
            self._places = self._values.ctypes.data + 8 * np.arange(len(args))
        self._values[:] = args
        self._device.launch(self._function, grid, self._places.ctypes.data)


def size(number: int) -> str:
    """Return a number of bytes as text."""
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{number / 1e6:,.1f} MB"


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return the driver's library, or raise if there is none, no GPU, or too old a driver."""
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f'device="gpu" runs on Linux, and this is {sys.platform}; use device="cpu"')
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError(
            'device="gpu" needs an NVIDIA GPU and its driver, and this machine has no libcuda.so.1; '
            'use device="cpu"'
        ) from None
    for name, kinds in _SIGNATURES.items():
        getattr(cuda, name).argtypes = kinds
    code, count, version = cuda.cuInit(0), ctypes.c_int(), ctypes.c_int()
    if code:
        raise DeviceError(f'the GPU driver does not start (error {code} of cuInit); use device="cpu"')
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        raise DeviceError('this machine has an NVIDIA driver but no GPU that it may use; use device="cpu"')
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if version.value < _LEAST_DRIVER:
        have = f"{version.value // 1000}.{version.value % 1000 // 10}"
        raise DeviceError(f"the GPU driver is for CUDA {have}, and 12.0 is needed at least; update it")
    return cuda


@lru_cache(maxsize=1)
def _gpu() -> Gpu:
    return Gpu()


def open_device() -> Device:
    """Return the GPU of this process, for use in this thread.

    Raises:
        DeviceError: If there is none, or its driver is too old.
    """
    device = _gpu()
    device.enter()
    return device
