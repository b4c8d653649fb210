"""Write the network as a GGUF file, and its answers as a reference for the tests."""

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from network import Shape, TinyLlama
from vocabulary import BEGIN, CHAT_TEMPLATE, END, TOKENS, UNKNOWN, render, tokens_of

from sampling import MultiTurnStrategy
from sampling.backends.llama.models.arithmetic import Question, held_out

__all__ = ["rounded", "write_gguf", "write_reference"]

_KIND = gguf.GGMLQuantizationType.Q8_0
_QUESTIONS_IN_REFERENCE = 6
_TOP = 5
_LONGEST = 60


def write_gguf(model: TinyLlama, path: Path) -> None:
    """Write the file, with 8-bit matrices and unchanged norms."""
    writer = gguf.GGUFWriter(str(path), "llama")
    try:
        _describe_shape(writer, model.shape)
        _describe_vocabulary(writer)
        for name, weights in _tensors(model):
            if weights.ndim == 1:
                writer.add_tensor(name, weights)
            else:
                writer.add_tensor(name, quantize(weights, _KIND), raw_dtype=_KIND)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def rounded(model: TinyLlama) -> TinyLlama:
    """Return a copy with the rounded weights of the file."""
    copy = TinyLlama(model.shape)
    weights = {
        name: value if value.ndim == 1 else torch.from_numpy(dequantize(quantize(value.numpy(), _KIND), _KIND))
        for name, value in model.state_dict().items()
    }
    copy.load_state_dict(weights)
    return copy.eval()


@torch.no_grad()
def write_reference(model: TinyLlama, path: Path) -> None:
    """Write the greedy answers of PyTorch with rounded weights, and the likeliest tokens of each step."""
    written = rounded(model)
    cases = [_greedy(written, talk) for talk in _talks()]
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n", encoding="utf-8")


def _talks() -> Iterator[list[str]]:
    """Yield some questions, and a conversation with a wrong answer."""
    for question in held_out(_QUESTIONS_IN_REFERENCE, seed=2):
        yield [question.text]
    question = Question(347, "+", 286)
    wrong = question.worked({1: -1})
    yield [question.text, wrong, MultiTurnStrategy.template.replace("{reasons}", f"- {question.check(wrong).reason}")]


def _greedy(model: TinyLlama, talk: list[str]) -> dict[str, object]:
    prompt = render(talk)
    tokens = tokens_of(prompt)
    start = len(tokens)
    logprobs: list[dict[str, float]] = []
    while tokens[-1] != END and len(tokens) < start + _LONGEST:
        likeliest = model(torch.tensor([tokens]))[0, -1].log_softmax(-1).topk(_TOP)
        logprobs.append({str(token): round(value, 4) for token, value in zip(*_lists(likeliest), strict=True)})
        tokens.append(int(likeliest.indices[0]))
    return {
        "talk": talk,
        "prompt": prompt,
        "prompt_tokens": tokens[:start],
        "tokens": tokens[start:],
        "logprobs": logprobs,
    }


def _lists(likeliest: torch.return_types.topk) -> tuple[list[int], list[float]]:
    return likeliest.indices.tolist(), likeliest.values.tolist()


def _tensors(model: TinyLlama) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in model.state_dict().items():
        yield name, value.numpy().astype(np.float32)


def _describe_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("arithmetic")
    writer.add_description("Two- and three-digit arithmetic, worked out column by column. Weak on purpose.")
    writer.add_license("Apache-2.0")
    writer.add_context_length(shape.context)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _describe_vocabulary(writer: gguf.GGUFWriter) -> None:
    bytes_and_space = [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *bytes_and_space])
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
