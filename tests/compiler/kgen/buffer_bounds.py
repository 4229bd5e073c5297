"""Holds kernels that run on the CPU to their buffers: g++ puts a call before each access to memory, and the
function that is called knows the buffers of a launch. What is read or written around one of them, or within
it off the alignment that a GPU asks for, fails the test, though no kernel crashes and no result differs."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np

from dlcb.compiler.kgen import Kernel
from dlcb.compiler.kgen.variants import ACCESS

ROOM = 1 << 20  # bytes on both sides of a buffer that belong to no other
_HALF = 1 << 63  # of all addresses, those that programs have
OPTIONS = (
    "-fno-tree-sink",  # a load that stands before its guard is not moved behind it
    "-fsanitize=kernel-address",  # the calls alone, without a library or memory of its own
    *("--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0", "--param=asan-globals=0"),
    "-fno-tree-sra",  # which makes several accesses of one
)
CHECKS = (
    f"#define ROOM {ROOM}ull"
    + """
#ifdef GPU_THREAD
#define IS_ALIGNED(at, size) ((at) % (size) == 0)
#else
#define GPU_THREAD 0
#define STOP
#define ON_STACK(at) false
#define IS_ALIGNED(at, size) true
#endif
#define UNCHECKED __attribute__((no_sanitize("kernel-address")))
namespace accesses {
struct Bytes { unsigned long long first, end; };
struct Buffer { Bytes readable, writable; };
struct Trespass { long long buffer, place, size, writes, thread; };
static const Buffer* buffers = nullptr;
static int count = 0;
static Trespass found;
static bool any = false;
UNCHECKED static void check(const void* place, unsigned long long size, bool writes) {
    const unsigned long long at = (unsigned long long)place;
    if (ON_STACK(at)) return;
    for (int k = 0; k < count; ++k) {
        const Bytes around = buffers[k].readable, held = writes ? buffers[k].writable : around;
        if (at >= held.first && at + size <= held.end && IS_ALIGNED(at, size)) return;
        if (at + ROOM < around.first || at > around.end + ROOM) continue;
        if (!__atomic_test_and_set(&any, __ATOMIC_RELAXED))
            found = {k, (long long)(at - around.first), (long long)size, writes, GPU_THREAD};
        STOP;
        return;
    }
}
}  // namespace accesses
extern "C" UNCHECKED int hold(const accesses::Buffer* buffers, int count, accesses::Trespass* found) {
    const int any = accesses::any;
    if (any) *found = accesses::found;
    accesses::buffers = buffers, accesses::count = count, accesses::any = false;
    return any;
}
#define CHECKED(name, size) \\
    extern "C" UNCHECKED void __asan_load##name { accesses::check(place, size, false); } \\
    extern "C" UNCHECKED void __asan_store##name { accesses::check(place, size, true); }
CHECKED(1_noabort(void* place), 1)
CHECKED(2_noabort(void* place), 2)
CHECKED(4_noabort(void* place), 4)
CHECKED(8_noabort(void* place), 8)
CHECKED(16_noabort(void* place), 16)
CHECKED(N_noabort(void* place, __SIZE_TYPE__ size), size)
extern "C" UNCHECKED void __asan_handle_no_return() {}
"""
)


def with_room(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of any content, aligned as a GPU's are, far from all others."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 2 * ROOM + 256, np.uint8)
    first = ROOM + -(memory.ctypes.data + ROOM) % 256
    return np.ndarray(tuple(shape), dtype, memory, first)


@contextmanager
def held_to_buffers(library: ctypes.CDLL, kernel: Kernel, memory: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Around a launch of `kernel`, of a library with `CHECKS`, over arrays made `with_room`: AssertionError
    where it leaves them. Columns that are peeled and rows that are shifted may read all of an aligned access
    that holds an element."""
    arrays = [memory[b.value_name] for b in kernel.buffers]
    whole = ACCESS if re.search("_columns_peeled|_shifted", kernel.name) else 1
    limits = [
        (*_bytes(array, whole), *(_bytes(array) if b.mode == "out" else (0, 0)))
        for array, b in zip(arrays, kernel.buffers, strict=True)
    ]
    with _held(library, limits) as found:
        yield
    if found:
        number, place, access = found[0]
        place -= arrays[number].ctypes.data - limits[number][0]
        name, array = kernel.buffers[number].value_name, arrays[number]
        buffer = f"{name}, which has {array.nbytes} from {array.ctypes.data:#x}"
        raise AssertionError(f"{kernel.name}: {access} at byte {place} of {buffer}")


@contextmanager
def held_to_alignment(library: ctypes.CDLL, name: str) -> Iterator[None]:
    """Around a launch of the kernel `name` over memory of which nothing is known but its address:
    AssertionError where an access lies off its alignment."""
    with _held(library, [(0, _HALF, 0, _HALF)]) as found:
        yield
    if found:
        _, place, access = found[0]
        raise AssertionError(f"{name}: {access} at {place:#x}, off their alignment")


@contextmanager
def _held(
    library: ctypes.CDLL, limits: Sequence[tuple[int, int, int, int]]
) -> Iterator[list[tuple[int, int, str]]]:
    """Around a launch that may read and write within `limits`, each the first and end of what may be read and
    of what may be written; gives, of the first access that leaves them, the limit it is near, by number, its
    bytes from that limit's first, and what it is in words."""
    numbers = (ctypes.c_uint64 * (4 * len(limits)))(*chain(*limits))  # the library keeps their address
    library.hold(numbers, len(limits), None)
    result, found = [], (ctypes.c_int64 * 5)()
    try:
        yield result
    finally:
        left = library.hold(None, 0, found)
    if left:
        number, place, size, writes, thread = found
        result.append((number, place, f"thread {thread} {'writes' if writes else 'reads'} {size} bytes"))


def _bytes(array: np.ndarray, multiple: int = 1) -> tuple[int, int]:
    """First and end of an array's addresses, rounded outwards; there is nothing around one of no elements."""
    first = array.ctypes.data
    if array.nbytes == 0:
        return first, first
    return first // multiple * multiple, -(-(first + array.nbytes) // multiple) * multiple
