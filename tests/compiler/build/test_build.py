"""Compiling under a key: what makes another key, one compile among many askers, and errors of one clear
line."""

import platform
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dlcb.compiler.build import Builder, build_unit, calls, toolchain, unit_key
from dlcb.compiler.build import key as key_module
from dlcb.compiler.build.build import LEAST_CHARACTERS, UNIT_CHARACTERS
from dlcb.compiler.errors import ArtifactError, RefusedCode, ToolchainError
from dlcb.compiler.expr.node import ONE, ZERO
from dlcb.compiler.kgen import Kernel, KernelSet, prelude
from dlcb.compiler.options import CompileOptions, Target
from dlcb.compiler.runtime.cpu import CpuDevice
from dlcb.kernel_cache import explain, open_store

TEXT = 'extern "C" int answer() { return 42; }\n'
CUDA_TEXT = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 1; }\n'
CPP, OPTIONS = Target.cpp(), CompileOptions()


def test_a_binary_is_compiled_once_and_found_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    before = calls["c++"]
    first = build_unit(TEXT, ["answer"], CPP, OPTIONS, store)
    assert build_unit(TEXT, ["answer"], CPP, OPTIONS, open_store(tmp_path / "cache")) == first
    assert calls["c++"] == before + 1
    assert store.get(first)[:4] == b"\x7fELF"


def test_many_askers_compile_once(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    before = calls["c++"]
    keys: list[str] = []
    ask = lambda: keys.append(build_unit(TEXT, ["answer"], CPP, OPTIONS, store))  # noqa: E731
    crowd = [threading.Thread(target=ask) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len(keys) == 8 and len(set(keys)) == 1
    assert calls["c++"] == before + 1


def test_each_ingredient_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    base = unit_key(TEXT, CPP, OPTIONS)
    others = {
        "text": unit_key(TEXT + "// \n", CPP, OPTIONS),
        "options": unit_key(TEXT, CPP, replace(OPTIONS, optimisation="-O3")),
        "static": unit_key(TEXT, CPP, replace(OPTIONS, static=True)),
        "target": unit_key(TEXT, Target("cpp", "other"), OPTIONS),
    }
    monkeypatch.setattr(key_module, "generator_digest", lambda: "changed")
    others["generator"] = unit_key(TEXT, CPP, OPTIONS)
    for name, other in others.items():
        assert other.digest != base.digest
        assert [line.split(":")[0] for line in explain(base, other)] == [name]


def test_what_does_not_matter_changes_nothing() -> None:
    base = unit_key(TEXT, CPP, OPTIONS)
    same = unit_key(TEXT, CPP, replace(OPTIONS, threads=7, probes=9, check_shapes=0, guard_seconds=1.0))
    assert same.digest == base.digest


def test_the_key_names_the_machine_not_only_native() -> None:
    assert "-march=" in unit_key(TEXT, CPP, OPTIONS)["machine"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="glibc has vector forms there")
def test_the_sine_and_the_cosine_of_one_angle_are_vector_code(tmp_path: Path) -> None:
    """GCC joins them into one call, of which there is no vector form."""
    text = (
        prelude.CPP
        + """
extern "C" void turn(const float* __restrict__ x, const double* __restrict__ y, float* __restrict__ to) {
    #pragma omp simd
    for (int i = 0; i < 1024; ++i) to[i] = sinf(x[i]) * cosf(x[i]);
    #pragma omp simd
    for (int i = 0; i < 1024; ++i) to[i + 1024] = float(sin(y[i]) * cos(y[i]));
}
"""
    )
    store = open_store(tmp_path / "cache")
    binary = store.get(build_unit(text, ["turn"], CPP, OPTIONS, store))
    assert b"sincos" not in binary
    for name in (b"v_sinf", b"v_cosf", b"v_sin", b"v_cos"):
        assert name + b"\0" in binary


def test_a_missing_compiler_is_one_clear_line(tmp_path: Path) -> None:
    options = replace(OPTIONS, compiler="no-such-compiler")
    expected = r"'no-such-compiler' cannot be run .*install g\+\+ or name one in \$CXX"
    with pytest.raises(ToolchainError, match=expected) as caught:
        build_unit(TEXT, ["answer"], CPP, options, open_store(tmp_path / "cache"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("target", "text"), [(CPP, "int f( {"), (Target.cuda(), "__global__ void f( {")])
def test_refused_text_is_not_a_missing_compiler(target: Target, text: str) -> None:
    with pytest.raises(RefusedCode, match=r"refused generated code: .*error") as caught:
        toolchain(target, OPTIONS).compile(text)
    assert "\n" not in str(caught.value)


def test_cuda_compiles_for_a_named_architecture_without_a_gpu() -> None:
    before = calls["nvrtc"]
    assert toolchain(Target.cuda("sm_90"), OPTIONS).compile(CUDA_TEXT)[:4] == b"\x7fELF"
    assert calls["nvrtc"] == before + 1
    assert (
        unit_key(CUDA_TEXT, Target.cuda("sm_90"), OPTIONS).digest
        != unit_key(CUDA_TEXT, Target.cuda("sm_80"), OPTIONS).digest
    )


def kernel(name: str, characters: int = 0) -> Kernel:
    body = f'extern "C" int {name}() {{ return 42; }}{" " * characters}\n'
    return Kernel(name, body, (), (), (), 1, (ONE, ONE, ONE), (1, 1, 1), ZERO, (), ONE)


def build(sets: list[list[Kernel]], folder: Path, threads: int) -> tuple[str, ...]:
    options = replace(OPTIONS, optimisation="-O0", threads=threads)
    with Builder(CPP, options, open_store(folder)) as builder:
        for kernels in sets:
            builder.add(KernelSet("", tuple(kernels)))
        keys = builder.keys()
        builder.wait()
        return keys


def test_kernels_are_shared_out_over_units_alike_on_any_number_of_threads(tmp_path: Path) -> None:
    half = UNIT_CHARACTERS // 2
    sets = [[kernel("a", half)], [kernel("b", half)], [kernel("a", half), kernel("c")], [kernel("d")]]
    before = calls["c++"]
    keys = build(sets, tmp_path / "one", 1)
    assert calls["c++"] == before + len(keys) == before + 2
    assert build(sets, tmp_path / "many", 4) == keys
    assert build(sets, tmp_path / "one", 4) == keys
    assert calls["c++"] == before + 4
    find = CpuDevice().load(keys, open_store(tmp_path / "one"))
    assert [find(name)() for name in "abcd"] == [None] * 4
    with pytest.raises(ArtifactError, match="no library has kernel 'e'"):
        find("e")


def test_no_kernels_are_no_units(tmp_path: Path) -> None:
    assert build([], tmp_path, 2) == ()


def test_a_refused_kernel_is_one_clear_line(tmp_path: Path) -> None:
    broken = replace(kernel("broken"), body="int f( {")
    with pytest.raises(RefusedCode, match="refused generated code"):
        build([[kernel("good", UNIT_CHARACTERS)], [broken]], tmp_path, 2)


def test_few_cuda_kernels_are_many_units_that_grow(tmp_path: Path) -> None:
    least = [kernel(f"k{number}", LEAST_CHARACTERS) for number in range(12)]
    with Builder(Target.cuda(), OPTIONS, open_store(tmp_path / "cache")) as builder:
        builder.add(KernelSet("", tuple(least[:4])))
        assert len(builder.keys()) == 4
        builder.add(KernelSet("", tuple(least[4:])))
        keys = builder.keys()
        builder.wait()
    assert 4 < len(keys) < len(least)
