"""Runs CUDA kernels on the CPU: the text is compiled by g++ behind a header in which every thread of a block
is a fiber, so that barriers and shuffles do what a GPU does. What a kernel computes and what memory it
touches is checked without a GPU; its speed and its races are not: a block's threads run one after the other,
each up to the next barrier."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from buffer_bounds import CHECKS, OPTIONS, held_to_alignment, held_to_buffers
from kernel_runs import CppRun, Unit, number, parameters

from dlcb.compiler.kgen import Kernel
from dlcb.compiler.runtime.cpu import CpuDevice
from dlcb.compiler.runtime.device import Cells, Prepared
from dlcb.kernel_cache.store import Store

_HEADER = """
#include <csetjmp>
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
struct half_t { _Float16 value; };
struct bfloat_t { uint16_t bits; };

namespace fibers {
struct Place { unsigned x = 0, y = 0, z = 0; };
enum State { READY, AT_BLOCK, AT_WARP, DONE };
constexpr int MOST = 1024, STACK = 128 << 10;
// a context is a fiber's first entry; jumping from then on asks nothing of the system
static ucontext_t contexts[MOST];
static jmp_buf main_place, places[MOST];
static char* stacks[MOST];
static bool started[MOST], abandoned = false;
static State states[MOST];
static int current = 0, count = 0;
static void (*body)(void* const*) = nullptr;
static void* const* arguments = nullptr;
static unsigned long long exchanged[MOST];
static void wait(State state) {
    states[current] = state;
    if (!_setjmp(places[current])) _longjmp(main_place, 1);
}
static void enter() {
    for (;; wait(DONE)) body(arguments);
}
static void abandon() {  // the whole launch, from within a thread of it
    abandoned = true;
    wait(DONE);
}
static void resume(int fiber) {
    if (_setjmp(main_place)) return;
    if (started[fiber]) _longjmp(places[fiber], 1);
    started[fiber] = true;
    if (!stacks[fiber]) stacks[fiber] = static_cast<char*>(std::malloc(STACK));
    getcontext(&contexts[fiber]);
    contexts[fiber].uc_stack.ss_sp = stacks[fiber];
    contexts[fiber].uc_stack.ss_size = STACK;
    makecontext(&contexts[fiber], enter, 0);
    setcontext(&contexts[fiber]);
}
}  // namespace fibers
static fibers::Place threadIdx, blockIdx, blockDim, gridDim;
#define GPU_THREAD (blockIdx.x * (long long)blockDim.x + threadIdx.x)
#define STOP fibers::abandon()
#define ON_STACK(at) ((at) - (unsigned long long)fibers::stacks[fibers::current] < fibers::STACK)

namespace fibers {
// Threads that a barrier holds go on once all of their block, or warp, have come to it or ended.
static bool release(int first, int last, State barrier) {
    bool any = false;
    for (int k = first; k < last; ++k) {
        if (states[k] == READY || (states[k] != barrier && states[k] != DONE)) return false;
        any |= states[k] == barrier;
    }
    for (int k = first; k < last; ++k) if (states[k] == barrier) states[k] = READY;
    return any;
}
static void run_block() {
    for (int k = 0; k < count; ++k) states[k] = READY;
    for (bool more = true; more;) {
        more = false;
        for (current = 0; current < count; ++current) {
            if (states[current] != READY) continue;
            threadIdx.x = current;
            resume(current);
            if (abandoned) return;
            more = true;
        }
        for (int warp = 0; warp < count; warp += 32) more |= release(warp, warp + 32, AT_WARP);
        more |= release(0, count, AT_BLOCK);
    }
    for (int k = 0; k < count; ++k)
        if (states[k] != DONE) { std::puts("threads wait forever"); std::abort(); }
}
}  // namespace fibers

extern "C" void run_kernel(
    void (*body)(void* const*), void* const* arguments, unsigned grid, unsigned threads
) {
    fibers::body = body, fibers::arguments = arguments, fibers::count = threads;
    gridDim.x = grid, blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < grid && !fibers::abandoned; ++blockIdx.x) fibers::run_block();
    if (fibers::abandoned) std::memset(fibers::started, 0, sizeof fibers::started);
    fibers::abandoned = false;
}
static void __syncthreads() { fibers::wait(fibers::AT_BLOCK); }
static void __syncwarp() { fibers::wait(fibers::AT_WARP); }
template <typename T> static T from_lane(T value, int lane) {
    std::memcpy(&fibers::exchanged[threadIdx.x], &value, sizeof value);
    __syncwarp();
    T result;
    std::memcpy(&result, &fibers::exchanged[threadIdx.x / 32 * 32 + lane], sizeof value);
    __syncwarp();
    return result;
}
template <typename T> static T __shfl_xor_sync(unsigned, T value, int distance) {
    return from_lane(value, int(threadIdx.x % 32) ^ distance);
}
template <typename To, typename From> static To same_bits(From x) {
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
static float __int_as_float(int x) { return same_bits<float>(x); }
static double __longlong_as_double(long long x) { return same_bits<double>(x); }
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> by % 32);
}
static unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static float float_of(half_t x) { return x.value; }
static half_t half_of(float x) { return {_Float16(x)}; }
static float float_of(bfloat_t x) { return same_bits<float>(unsigned(x.bits) << 16); }
static bfloat_t bfloat_of(float x) {
    unsigned bits = same_bits<unsigned>(x);
    return {uint16_t(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static double rsqrt(double x) { return 1.0 / std::sqrt(x); }
using Word = unsigned long long;
static Word atomicCAS(Word* place, Word was, Word now) {
    Word old = *place;
    if (old == was) *place = now;
    return old;
}
"""


@cache
def emulated(unit: Unit) -> ctypes.CDLL:
    """The CUDA kernels of `unit` as a library for the CPU."""
    return library(
        unit.text, [k for case in unit.cases.values() for made in case.kernels for k in made.kernels]
    )


def library(text: str, kernels: Iterable[Kernel]) -> ctypes.CDLL:
    """`text`, in which `kernels` stand, as a library for the CPU."""
    text = "\n".join([_HEADER, CHECKS, text, *map(_entry, {k.name: k for k in kernels}.values())])
    options = ["-x", "c++", "-std=c++20", "-w", "-O1", "-ffp-contract=fast", "-fno-strict-aliasing", *OPTIONS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "unit.so"
        command = ["g++", *options, "-shared", "-fPIC", "-", "-o", str(path)]
        subprocess.run(command, input=text, text=True, check=True)
        return ctypes.CDLL(str(path))


def _entry(kernel: Kernel) -> str:
    """A function that takes a kernel's arguments from an array of pointers to them."""
    types = [f"{'const ' if b.mode == 'in' else ''}{b.dtype.cuda}*" for b in kernel.buffers]
    for parameter in kernel.parameters:
        types += {
            "int32": ["int"],
            "int64": ["long long"],
            "magic": ["unsigned"] * 2,
            "magic64": ["unsigned long long"] * 2,
        }[parameter.kind]
    types.append("long long*")
    passed = ", ".join(f"*({kind}*)arguments[{k}]" for k, kind in enumerate(types))
    return f'extern "C" void enter_{kernel.name}(void* const* arguments) {{ {kernel.name}({passed}); }}'


@dataclass(eq=False)
class EmulatedRun(CppRun):
    """On emulated threads, held to the buffers of each launch. What no kernel writes stays a pattern of bytes
    that results do not have."""

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        array = super().empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = 0xA5
        return array

    def launch(self, kernel: Kernel, memory: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
        buffers = [memory[b.value_name].ctypes.data for b in kernel.buffers]
        status = self.unit.cases[self.label].status
        numbers = [n for _, n in parameters(kernel, sizes)]
        cells = [ctypes.c_int64(n) for n in (*buffers, *numbers, status.ctypes.data)]
        arguments = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        library = emulated(self.unit)
        entry = ctypes.cast(getattr(library, f"enter_{kernel.name}"), ctypes.c_void_p)
        with held_to_buffers(library, kernel, memory):
            library.run_kernel(entry, arguments, number(kernel.grid[0], sizes), kernel.block[0])


class EmulatedDevice(CpuDevice):
    """Runs host programs made for CUDA, with the kernels of one library on emulated threads."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        super().__init__()
        self._kernels = kernels

    def load(self, keys: Sequence[str], store: Store) -> Callable[[str], Any]:
        return lambda name: name

    def launchers(
        self, launches: Sequence[Prepared], arguments: Cells
    ) -> tuple[list[Callable[[], None]], Any]:
        addresses = Cells(arguments.address_of(cell) for cell in range(arguments.count))
        runs: list[Callable[[], None]] = []
        for function, launch, first, _, _ in launches:
            block = ctypes.c_void_p(addresses.address_of(first))
            runs.append(partial(self._run, function, block, launch.grid[0], launch.block[0]))
        return runs, addresses

    def _run(self, name: str, *launch: Any) -> None:
        entry = ctypes.cast(getattr(self._kernels, f"enter_{name}"), ctypes.c_void_p)
        with held_to_alignment(self._kernels, name):
            self._kernels.run_kernel(entry, *launch)
