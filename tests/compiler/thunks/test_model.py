"""A loaded model: tiers in order, arrays in and out, the contract, guards, plans ahead of calls, and what it
counts."""

import dataclasses
import json
from concurrent.futures import Future
from pathlib import Path

import handmade
import numpy
import pytest
import thunk_models
import torch
from safetensors.torch import save_file

from dlcb.compiler import artifact as artifacts
from dlcb.compiler.artifact import Artifact
from dlcb.compiler.bridge.ranks import specialise
from dlcb.compiler.errors import ArtifactError, ChangedCode, ContractError, GuardError, IndexRangeError
from dlcb.compiler.expr.node import size
from dlcb.compiler.host.program import Guard, Program
from dlcb.compiler.modules import file_digest
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.parameters import place
from dlcb.compiler.report import Report
from dlcb.compiler.runtime.weights import WeightFile
from dlcb.compiler.signature import Dim, Signature, TensorSpec
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.compiler.thunks.assemble import load_model
from dlcb.compiler.thunks.model import CompiledModel

n, m = size("n"), size("m")
OPTIONS = CompileOptions()


def publish(artifact: Artifact, source: ModelSource, parameters, store: handmade.DictStore) -> str:
    key = artifacts.put(place(artifact, source, parameters, store), source, store)
    artifacts.enter(key, source, OPTIONS, store)
    return key


@pytest.fixture
def store() -> handmade.DictStore:
    return handmade.store_with_kernels()[0]


def unit() -> str:
    return handmade.store_with_kernels()[1]


def signature(name: str, dtype: str, outputs: int, rank: int | None = 2) -> Signature:
    def dims(count: int | None):
        return None if count is None else tuple(Dim(f"d{k}", 0, None) for k in range(count))

    return Signature((TensorSpec(name, dtype, dims(rank)),), (TensorSpec("out", "float32", dims(outputs)),))


TWICE = ModelSource(
    name="twice",
    version="1",
    factory="thunk_models:twice",
    inputs=(InputDeclaration("x", "float32", ("rows", "columns")),),
    outputs=("out",),
    dims={"columns": (1, 64)},
)


def twice_model(store: handmade.DictStore, source: ModelSource = TWICE, **change) -> CompiledModel:
    program = handmade.chain(unit(), 1)
    (segment,) = program.segments
    guard = Guard(n <= 512, False, "slice of the table, thunk_models.py:16")
    program = dataclasses.replace(program, segments=(dataclasses.replace(segment, guards=(guard,)),))
    artifact = Artifact(signature("x", "float32", 2), Report("dynamic"), program)
    key = publish(dataclasses.replace(artifact, **change), source, {}, store)
    return load_model(source, key, store)


def array(*shape: int) -> numpy.ndarray:
    return numpy.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def test_arrays_go_in_and_out_and_the_second_call_hits(store) -> None:
    model = twice_model(store)
    for expected in ("miss", "hit"):
        x = array(3, 5)
        outcome = model.run({"x": x})
        assert (outcome.tier, outcome.result) == ("dynamic", expected)
        numpy.testing.assert_array_equal(outcome.outputs["out"], 2 * x)
    counters = model.counters
    assert (counters.entries, counters.hits, counters.misses) == (1, 1, 1)
    assert not counters.guard_failures


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, ::2],
        lambda x: x.T,
        lambda x: x[::-1],
        lambda x: numpy.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),  # read-only
        lambda x: numpy.frombuffer(b"\0" * 4 + x.tobytes(), x.dtype)[1:].reshape(
            x.shape
        ),  # not aligned to 16 bytes
        lambda x: x[:0],
    ],
)
def test_any_strides_and_any_memory_are_served(store, change) -> None:
    model, x = twice_model(store), change(array(6, 8))
    numpy.testing.assert_array_equal(model.run({"x": x}).outputs["out"], 2 * x)


def test_tensors_of_any_strides_are_served_too(store) -> None:
    model, x = twice_model(store), torch.randn(4, 3).t()
    assert torch.equal(model.call(x)[0], 2 * x)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "takes inputs 'x', found none"),
        ({"x": array(2, 2), "y": array(1)}, "takes inputs 'x', found 'x', 'y'"),
        ({"y": array(2, 2)}, "takes inputs 'x', found 'y'"),
        ({"x": array(2, 2).astype("float64")}, "input 'x' is float64, expected float32"),
        ({"x": array(2)}, r"input 'x' has rank 1, shape \[2\]; declared is rank 2, shape \[rows, columns\]"),
        (
            {"x": array(2, 65)},
            "axis 1 of input 'x' is 65, but 'columns' is declared as 1 to 64; nearest legal size 64",
        ),
        (
            {"x": array(2, 0)},
            "axis 1 of input 'x' is 0, but 'columns' is declared as 1 to 64; nearest legal size 1",
        ),
    ],
)
def test_a_broken_contract_is_refused(store, inputs, words) -> None:
    model = twice_model(store)
    with pytest.raises(ContractError, match=words):
        model.run(inputs)
    assert model.counters.guard_failures == 0


def test_beyond_a_derived_guard_pytorch_decides(store) -> None:
    model = twice_model(store)
    with pytest.raises(GuardError) as caught:
        model.run({"x": array(600, 3)})
    words = str(caught.value)
    assert (
        "n <= 512 must hold (slice of the table, thunk_models.py:16), but n = 600 (axis 0 of input 'x')"
        in words
    )
    assert "nearest legal n: 512" in words
    assert "PyTorch refuses inputs 'x' [600, 3]" in words
    assert model.counters.guard_failures == 1
    assert model.run({"x": array(512, 3)}).tier == "dynamic"


def test_beyond_a_guard_that_is_ours_alone_pytorch_serves(store) -> None:
    source = dataclasses.replace(TWICE, factory="thunk_models:double")
    model, x = twice_model(store, source), array(600, 3)
    outcome = model.run({"x": x})
    assert outcome.tier == "eager"
    numpy.testing.assert_array_equal(outcome.outputs["out"], 2 * x)
    assert model.plan({"x": (600, 3)}).tier == "eager"


def test_a_quarantined_model_runs_eagerly(store) -> None:
    model, x = twice_model(store, quarantined="outputs differ"), array(3, 4)
    outcome = model.run({"x": x})
    assert (outcome.tier, outcome.result) == ("eager", "miss")
    numpy.testing.assert_array_equal(outcome.outputs["out"], 2 * x)
    assert model.counters.quarantined
    with pytest.raises(ContractError, match="declared as 1 to 64"):
        model.run({"x": array(3, 65)})


def test_beside_kernels_pytorch_runs_no_other_code(store) -> None:
    source = dataclasses.replace(TWICE, factory="thunk_models:double")
    model, x = twice_model(store, source, modules={"thunk_models.py": "of another text"}), array(3, 4)
    numpy.testing.assert_array_equal(model.run({"x": x}).outputs["out"], 2 * x)
    with pytest.raises(ChangedCode, match=r"'thunk_models\.py', in the folder of factory"):
        model.run({"x": array(600, 3)})


def test_a_plan_tells_shapes_and_bytes_and_runs_nothing(store) -> None:
    model = twice_model(store)
    for cached in (False, True):
        summary = model.plan({"x": (3, 5)})
        assert summary.output_shapes == {"out": (3, 5)}
        assert (summary.tier, summary.bytes, summary.cached, summary.would_compile) == (
            "dynamic",
            60,
            cached,
            False,
        )
        model.run({"x": array(3, 5)})
    with pytest.raises(ContractError, match="declared as 1 to 64"):
        model.plan({"x": (3, 65)})
    with pytest.raises(ContractError, match="takes inputs"):
        model.plan({"y": (3, 5)})


# ---- parameters, constants, artifacts


LOOKUP = ModelSource(
    name="lookup",
    version="1",
    factory="thunk_models:lookup",
    inputs=(InputDeclaration("ids", "int64", ("batch", "length"), values=(0, 10)),),
    outputs=("out",),
)


def lookup_model(store: handmade.DictStore, source: ModelSource = LOOKUP, **change) -> CompiledModel:
    artifact = Artifact(signature("ids", "int64", 3), Report("dynamic"), handmade.lookup(unit()), **change)
    key = publish(artifact, source, handmade.table(), store)
    return load_model(source, key, store)


@pytest.mark.parametrize("quarantined", ["", "outputs differ"])
def test_a_bad_index_is_named_on_every_tier(store, quarantined) -> None:
    model = lookup_model(store, quarantined=quarantined)
    ids = numpy.array([[1, 2, 3], [4, 10, 6]])
    with pytest.raises(IndexRangeError) as caught:
        model.run({"ids": ids})
    assert (caught.value.input, caught.value.position, caught.value.value) == ("ids", (1, 1), 10)
    outputs = model.run({"ids": ids % 10}).outputs
    numpy.testing.assert_array_equal(outputs["out"], handmade.table()["table"].numpy()[ids % 10])


def test_a_call_that_does_not_wait_leaves_its_bad_index_to_a_later_one(store) -> None:
    model = lookup_model(store)
    table = handmade.table()["table"]
    good, bad = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 10, 3]])
    model.check()
    model.call(bad, wait=False)
    with pytest.raises(IndexRangeError, match=r"holds 10 at position \[0, 1\]"):
        model.check()
    model.check()
    model.call(bad, wait=False)
    model.call(good, wait=False)  # the same plan, whose flags stay up
    with pytest.raises(IndexRangeError, match=r"holds 10 at position \[0, 1\]"):
        model.check()
    model.call(bad, wait=False)
    with pytest.raises(IndexRangeError, match=r"holds 10 at position \[0, 1\]"):
        model.call(torch.zeros(2, 3, dtype=torch.int64), wait=False)  # a position means another place there
    for wait in (False, True):
        torch.testing.assert_close(model.call(good, wait=wait)[0], table[good])
    model.check()
    model.call(bad, wait=False)
    with pytest.raises(IndexRangeError, match="holds 10"):
        model.call(good)


def test_parameters_in_registered_files_are_named_not_copied(store, tmp_path: Path) -> None:
    other = torch.randn(10, 4)
    path = tmp_path / "weights.safetensors"
    save_file({"other": other, "encoder.table": handmade.table()["table"], "bias": torch.randn(3)}, path)
    source = dataclasses.replace(LOOKUP, weights=(str(path),))
    model = lookup_model(store, source, modules=source.file_digests())
    ids = numpy.array([[1, 9]])
    numpy.testing.assert_array_equal(
        model.run({"ids": ids}).outputs["out"], handmade.table()["table"].numpy()[ids]
    )
    key, artifact = artifacts.find(source, OPTIONS, store)
    assert artifact.references["table"].tensor == "encoder.table"
    assert artifact.constants == ""
    before = path.read_bytes()
    with path.open("r+b") as file:  # somebody writes into the file
        file.truncate(100)
    numpy.testing.assert_array_equal(
        model.run({"ids": ids}).outputs["out"], handmade.table()["table"].numpy()[ids]
    )
    save_file({"encoder.table": other}, path)  # or exchanges it
    with pytest.raises(
        ChangedCode, match=r"weights\[0\] '.*weights.safetensors' has changed since the model"
    ):
        load_model(source, key, store)
    path.unlink()
    with pytest.raises(ChangedCode, match="it cannot be read"):
        load_model(source, key, store)
    path.write_bytes(before)
    load_model(source, key, store)


@pytest.mark.parametrize("key", ["program", "weights"])
def test_pytorch_reads_no_file_that_has_changed(store, tmp_path: Path, key: str) -> None:
    path, other = tmp_path / "read.pt2", tmp_path / "other"
    torch.save({}, path)
    where = {"program": str(path), "factory": None} if key == "program" else {"weights": (str(path),)}
    source = dataclasses.replace(LOOKUP, **where)
    given = {"ids": numpy.array([[1, 9]])}
    models = [
        lookup_model(store, source, quarantined="it differs", modules=source.file_digests()) for _ in "ab"
    ]
    if key == "weights":
        models[0].run(given)  # from now on it holds what it has read
    other.write_bytes(b"new")
    other.rename(path)
    if key == "weights":
        models[0].run(given)
    with pytest.raises(ChangedCode, match=f"^{key}.* '{Path(path).name}' has changed since the model"):
        models[1].run(given)


def test_torch_files_are_read_without_running_anything(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"model": {"w": torch.arange(3.0)}, "step": 7, "list": [torch.ones(2)]}, path)
    file = WeightFile(path)
    assert set(file.names) == {"model.w", "list.0"}
    assert torch.equal(file["model.w"], torch.arange(3.0))
    with pytest.raises(ArtifactError, match="hold no tensor 'b'"):
        file["b"]
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    (tmp_path / "labels.txt").write_bytes(b"cat\ndog\n")
    for name in ("torn.safetensors", "labels.txt"):
        with pytest.raises(ArtifactError, match="cannot be read"):
            WeightFile(tmp_path / name)


def test_artifacts_come_back_equal(store) -> None:
    lookup_model(store)
    key, artifact = artifacts.find(LOOKUP, OPTIONS, store)
    assert artifacts.load(key, store) == artifact
    assert Artifact.from_json(json.loads(json.dumps(artifact.to_json()))) == artifact
    assert isinstance(artifact.program, Program)


def test_what_has_left_the_store_is_compiled_again(store) -> None:
    lookup_model(store)
    key, artifact = artifacts.find(LOOKUP, OPTIONS, store)
    assert len(artifact.needs) == 2
    for missing in (*artifact.needs, key):
        payload = store.entries.pop(missing)
        assert artifacts.find(LOOKUP, OPTIONS, store) is None
        store.put(missing, payload)
    assert artifacts.find(LOOKUP, CompileOptions(static=True), store) is None
    assert artifacts.find(dataclasses.replace(LOOKUP, jit="wait"), OPTIONS, store) is None
    assert artifacts.find(dataclasses.replace(LOOKUP, version="2"), OPTIONS, store) is not None


@pytest.mark.parametrize("payload", [b"{", b"\xff", b"[]", b'{"version": 0}', b'{"version": 1}'])
def test_a_foreign_artifact_is_refused(store, payload) -> None:
    store.put("a" * 64, payload)
    with pytest.raises(ArtifactError):
        artifacts.load("a" * 64, store)
    with pytest.raises(ArtifactError, match="no artifact under"):
        artifacts.load("b" * 64, store)


# ---- unknown ranks

ANY_RANK = ModelSource(
    name="double",
    version="3",
    factory="thunk_models:double",
    inputs=(InputDeclaration("x", "float32", None),),
    outputs=("out",),
)


class Compiles:
    """Stands where the compile process does: makes artifacts of handmade programs when told to."""

    def __init__(self, store: handmade.DictStore) -> None:
        self.store = store
        self.asked: list[ModelSource] = []
        self.futures: list[Future[str]] = []

    def __call__(self, source: ModelSource) -> "Future[str]":
        self.asked.append(source)
        self.futures.append(Future())
        return self.futures[-1]

    def finish(self, number: int = -1, **change) -> None:
        source = self.asked[number]
        dims = [size(f"d{k}") for k in range(len(source.inputs[0].shape))]
        count = handmade.product(dims)
        program = handmade.program(
            [handmade.given("x", *dims)],
            [handmade.buffer("out", count, "result", 0, 1)],
            [handmade.launch("twice", ["x", "out"], count)],
            [handmade.tensor("out", *dims)],
            ["out"],
            unit(),
        )
        artifact = Artifact(signature("x", "float32", len(dims), len(dims)), Report("dynamic"), program)
        artifact = dataclasses.replace(artifact, **change)
        self.futures[number].set_result(publish(artifact, source, {}, self.store))


def any_rank_model(
    store: handmade.DictStore, compiles: Compiles | None, source: ModelSource = ANY_RANK, **change
) -> CompiledModel:
    artifact = dataclasses.replace(Artifact(signature("x", "float32", 0, None), Report("jit")), **change)
    key = publish(artifact, source, {}, store)
    return load_model(source, key, store, request_compile=compiles)


def served(model: CompiledModel, *shape: int) -> tuple[str, str]:
    x = array(*shape)
    outcome = model.run({"x": x})
    numpy.testing.assert_array_equal(outcome.outputs["out"], 2 * x)
    return outcome.tier, outcome.result


def test_a_new_rank_is_served_eagerly_until_it_is_compiled(store) -> None:
    compiles = Compiles(store)
    model = any_rank_model(store, compiles)
    assert model.plan({"x": (2, 3)}).would_compile
    assert [served(model, 2, 3), served(model, 4, 5)] == [("eager", "miss")] * 2
    assert [source.inputs[0].shape for source in compiles.asked] == [("x_0?", "x_1?")]
    assert not model.plan({"x": (2, 3)}).would_compile
    compiles.finish()
    assert [served(model, 2, 3), served(model, 2, 3), served(model, 9, 1)] == [
        ("jit", "miss"),
        ("jit", "hit"),
        ("jit", "miss"),
    ]
    assert served(model, 2, 3, 4) == ("eager", "miss")  # another rank, another compile
    assert len(compiles.asked) == 2
    assert model.plan({"x": (2, 3)}).tier == "jit"
    counters = model.counters
    assert (counters.compiles_requested, counters.hits, counters.misses) == (2, 1, 2)
    assert unit() in store.pins["double:3"]


def test_ranks_are_remembered_across_restarts(store) -> None:
    compiles = Compiles(store)
    model = any_rank_model(store, compiles)
    served(model, 2, 3)
    compiles.finish()
    restarted = any_rank_model(store, None)
    plans = [restarted.plan({"x": shape}) for shape in ((4, 4), (4,))]
    assert [(plan.tier, plan.would_compile) for plan in plans] == [("jit", False), ("eager", False)]
    assert served(restarted, 4, 4) == ("jit", "miss")
    assert served(restarted, 4) == ("eager", "miss")  # nobody to ask
    assert restarted.counters.compiles_requested == 0


def test_hot_plans_of_all_ranks_are_recorded_in_turn(store) -> None:
    compiles = Compiles(store)
    model = any_rank_model(store, compiles)
    assert not model.promote()  # without a GPU
    for shape in ((2,), (2, 3)):
        served(model, *shape)
        compiles.finish()
        served(model, *shape)
    hot: list[int] = []

    class Hot:
        """Finds a hot plan whenever it is asked."""

        def promote(self, executor) -> bool:
            hot.append(len(executor.program.inputs[0].dims))
            return True

    model.recorder = Hot()
    assert all(model.promote() for _ in range(4))
    assert sorted(hot) == [1, 1, 2, 2]


def test_a_model_that_waits_holds_the_request(store) -> None:
    class AtOnce(Compiles):
        def __call__(self, source: ModelSource) -> "Future[str]":
            future = super().__call__(source)
            self.finish()
            return future

    model = any_rank_model(store, AtOnce(store), dataclasses.replace(ANY_RANK, jit="wait"))
    assert model.plan({"x": (2, 3)}).tier == "jit"
    assert served(model, 2, 3) == ("jit", "miss")


def test_a_failed_compile_leaves_the_rank_eager(store, caplog: pytest.LogCaptureFixture) -> None:
    compiles = Compiles(store)
    model = any_rank_model(store, compiles)
    served(model, 2, 3)
    compiles.futures[0].set_exception(RuntimeError("the compile process was killed"))
    assert [served(model, 2, 3), served(model, 2, 3)] == [("eager", "miss")] * 2
    assert len(compiles.asked) == 1
    assert "double at ranks (2,) stays eager: the compile process was killed" in caplog.text


@pytest.mark.parametrize("same", [True, False])
def test_a_rank_of_other_code_is_not_loaded(store, same: bool, caplog: pytest.LogCaptureFixture) -> None:
    compiles = Compiles(store)
    file = Path(thunk_models.__file__)
    model = any_rank_model(store, compiles, modules={file.name: file_digest(str(file))})
    served(model, 2, 3)
    compiles.finish(modules={file.name: file_digest(str(file)) if same else "of another text"})
    assert served(model, 2, 3)[0] == ("jit" if same else "eager")
    assert (f"stays eager: '{file.name}'" in caplog.text) is not same


def test_the_number_of_ranks_that_are_compiled_is_bounded(store) -> None:
    compiles = Compiles(store)
    model = any_rank_model(store, compiles)
    for rank in range(1, 20):
        assert served(model, *[1] * rank)[0] == "eager"
    assert len(compiles.asked) == 16


def test_a_specialised_source_has_an_identity_of_its_own() -> None:
    digests = {specialise(ANY_RANK, [rank]).identity().digest for rank in (0, 1, 2)}
    assert len(digests) == 3


def test_inputs_that_differ_between_artifact_and_source_are_refused(store) -> None:
    source = dataclasses.replace(TWICE, inputs=(InputDeclaration("other", "float32", ("rows", "columns")),))
    with pytest.raises(ArtifactError, match=r"has inputs \['other'\], its artifact \['x'\]"):
        twice_model(store, source)
