"""Whole models: the quickstart's with their real weights, and small random transformers, captured and
compared with eager PyTorch at sizes that were never traced."""

from __future__ import annotations

import pytest
import torch
import transformers
from captured_programs import assert_agrees
from torch import Tensor, nn

from dlcb.compiler import quickstart
from dlcb.compiler.bridge.capture import load_module
from dlcb.compiler.bridge.generalize import Captured, generalize
from dlcb.compiler.bridge.weights import origins
from dlcb.compiler.errors import CaptureError
from dlcb.compiler.options import CompileOptions
from dlcb.compiler.passes.decompose import decompose
from dlcb.compiler.passes.independence import batch_axes
from dlcb.compiler.source import InputDeclaration, ModelSource

IDS = InputDeclaration("input_ids", "int64", ("batch", "sequence"), (0, 100))
MASK = InputDeclaration("attention_mask", "int64", ("batch", "sequence"), (0, 2))
IMAGE = InputDeclaration("image", "float32", ("batch", 3, "height", "width"))
SOUND = InputDeclaration("sound", "float32", ("batch", "samples"))
TINY = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}


class Field(nn.Module):
    """A transformers model, reduced to one field of what it returns."""

    def __init__(self, model: nn.Module, field: str = "last_hidden_state") -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, first: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        return getattr(self.model(first, **mask), self.field)


def capture(module: nn.Module, *inputs: InputDeclaration) -> Captured:
    return generalize(
        ModelSource("model", "1", factory="tests:none", inputs=inputs), module, CompileOptions(probes=2)
    )


def ranges(program: Captured) -> dict[str, tuple[int, int | None]]:
    return {
        verdict.size: (verdict.low, verdict.high)
        for verdict in program.verdicts
        if isinstance(verdict.size, str)
    }


def text(batch: int, length: int, vocabulary: int = 100) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 + 1 :] = 0
    return {"input_ids": torch.randint(0, vocabulary, (batch, length)), "attention_mask": mask}


# ---- quickstart ------------------------------------------------------------------------------------


def test_minilm_has_batch_and_sequence_free_up_to_its_position_table() -> None:
    source = ModelSource(
        "minilm",
        "1",
        factory="dlcb.compiler.quickstart:minilm",
        inputs=(InputDeclaration("input_ids", "int64", ("batch", "sequence"), (0, 30522)), MASK),
    )
    module = load_module(source)
    program = generalize(source, module)
    assert ranges(program) == {"batch": (0, None), "sequence": (0, 512)}
    assert "modeling_bert.py" in program.verdicts[1].source
    assert {verdict.certainty for verdict in program.verdicts} == {"proven"}
    assert program.notes == ()
    assert [repr(size) for size in program.graph.outputs[0].shape] == ["batch", "384"]
    for batch, length in ((1, 1), (2, 5)):
        assert_agrees(program, module, text(batch, length, 30522), 1e-4)


def test_pnet_has_batch_height_and_width_free_from_its_smallest_image_on() -> None:
    source = ModelSource(
        "pnet", "1", factory="dlcb.compiler.quickstart:pnet", inputs=(IMAGE,), outputs=("face", "box")
    )
    module = load_module(source)
    program = generalize(source, module)
    assert ranges(program) == {"batch": (0, None), "height": (11, None), "width": (11, None)}
    assert program.verdicts[1].size == 3
    assert program.outputs == ("face", "box")
    assert "quickstart.py" in program.verdicts[2].source
    for shape in ((1, 3, 11, 12), (2, 3, 15, 14)):
        assert_agrees(program, module, {"image": torch.randn(shape)})


def test_every_weight_of_pnet_is_found_in_its_file() -> None:
    network = quickstart.pnet()
    path = quickstart._weights_file((), "facenet_pytorch", "data/pnet.pt")
    found = origins(dict(network.state_dict()), [str(path)])
    assert {name: origin.name for name, origin in found.items()} == {
        name: name for name in network.state_dict()
    }
    assert origins({"other": torch.full((3,), 0.5)}, [str(path)]) == {}


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_standardize_serves_any_rank_once_it_is_known(rank: int) -> None:
    module = quickstart.standardize().eval()
    program = capture(module, InputDeclaration("x", "float32", tuple(f"d{k}" for k in range(rank))))
    assert len(ranges(program)) == rank
    assert_agrees(program, module, {"x": torch.randn((5, 3, 2, 4)[:rank])})


def test_a_missing_weights_file_is_named(tmp_path: object) -> None:
    with pytest.raises(CaptureError, match=r"absent\.pt"):
        quickstart.pnet([f"{tmp_path}/absent.pt"])


# ---- small random models of many kinds -------------------------------------------------------------


def bert() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.BertConfig(vocab_size=100, max_position_embeddings=40, **TINY)
    return Field(transformers.BertModel(config, add_pooling_layer=False)), (IDS, MASK)


def gpt2() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.GPT2Config(
        n_layer=1, n_head=4, n_embd=32, vocab_size=100, n_positions=64, bos_token_id=1, eos_token_id=1
    )
    return Field(transformers.GPT2Model(config)), (IDS,)


def llama() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.LlamaConfig(vocab_size=100, num_key_value_heads=2, use_cache=False, **TINY)
    return Field(transformers.LlamaModel(config)), (IDS,)


def t5() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.T5Config(d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8, vocab_size=100)
    return Field(transformers.T5EncoderModel(config)), (IDS, MASK)


def vit() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.ViTConfig(image_size=32, patch_size=8, **TINY)
    native = InputDeclaration("image", "float32", ("batch", 3, 32, 32))
    return Field(transformers.ViTModel(config, add_pooling_layer=False)), (native,)


def resnet() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    return Field(transformers.ResNetModel(config), "pooler_output"), (IMAGE,)


def segformer() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
    )
    return Field(transformers.SegformerForSemanticSegmentation(config), "logits"), (IMAGE,)


def wav2vec2() -> tuple[nn.Module, tuple[InputDeclaration, ...]]:
    config = transformers.Wav2Vec2Config(
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **TINY,
    )
    return Field(transformers.Wav2Vec2Model(config)), (SOUND,)


@pytest.mark.parametrize(
    ("build", "expected", "samples"),
    [
        (bert, {"batch": (0, None), "sequence": (0, 40)}, [(1, 1), (2, 17)]),
        (gpt2, {"batch": (0, None), "sequence": (0, 64)}, [(1, 1), (2, 17)]),
        (llama, {"batch": (0, None), "sequence": (1, None)}, [(1, 1), (2, 17)]),
        (t5, {"batch": (0, None), "sequence": (2, None)}, [(1, 3), (2, 17)]),
        (vit, {"batch": (0, None)}, [(1, 3, 32, 32)]),
        (resnet, {"batch": (0, None), "height": (1, None), "width": (1, None)}, [(1, 3, 20, 9)]),
        (wav2vec2, {"batch": (0, None), "samples": (20, None)}, [(1, 33), (2, 57)]),
    ],
)
def test_small_models(
    build: object, expected: dict[str, tuple[int, int | None]], samples: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    module, inputs = build()
    module = module.eval().requires_grad_(False)
    program = capture(module, *inputs)
    assert ranges(program) == expected
    assert program.notes == ()
    assert batch_axes(decompose(program.graph, keep=frozenset())).symbol == "batch"
    for shape in samples:
        tensors = text(*shape) if inputs[0] is IDS else {inputs[0].name: torch.randn(shape)}
        assert_agrees(program, module, {declared.name: tensors[declared.name] for declared in inputs}, 1e-4)


def test_a_model_whose_small_images_have_results_of_one_row() -> None:
    module, inputs = segformer()
    module = module.eval().requires_grad_(False)
    program = capture(module, *inputs)
    assert {verdict.certainty for verdict in program.verdicts} == {"proven"}
    assert ranges(program)["height"][1] is None
    assert_agrees(program, module, {"image": torch.randn(1, 3, 23, 14)}, 1e-4)
