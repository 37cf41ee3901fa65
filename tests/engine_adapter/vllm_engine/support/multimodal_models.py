"""Small multimodal models with random weights, and media for them."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from demo import model_path
from engine_adapter.seam.media import Modality
from tests.engine_adapter.proposers.mtp_layout import Layout
from tests.engine_adapter.vllm_engine.architectures.small_models import LOUD, QUIET
from tests.engine_adapter.vllm_engine.support.window_models import SMALL

TEXT: Mapping[str, Any] = {
    **SMALL,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "vocab_size": 2112,
}
"""The fields of every language model; its vocabulary has room for the tokens of items."""


@dataclass(frozen=True)
class Family:
    """A kind of multimodal model.

    Attributes:
        name: of the family; the model type of transformers.
        placeholder: the text that stands for an item in a prompt.
        tokens: special tokens that are added to the demo's tokenizer.
        config: makes the configuration from the ids of the special tokens, by their text.
        processor: makes the processor from the tokenizer.
        renames: beginnings of weights' names as transformers writes them -> as vLLM reads them.
        named_tokens: names by which the processor asks the tokenizer for special tokens.
        mtp: where the checkpoint has its MTP layer; `None` for a model without one.
        has_assistant: whether an assistant of Gemma 4 drafts for it.
        shows_layers: whether heads that read the target's layers draft for it, too.
        modality: what it takes.
    """

    name: str
    placeholder: str
    tokens: tuple[str, ...]
    config: Callable[[Mapping[str, int]], Any]
    processor: Callable[[Any], Any]
    renames: Mapping[str, str] = field(default_factory=dict)
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    mtp: Layout | None = None
    has_assistant: bool = False
    shows_layers: bool = False
    modality: Modality = Modality.IMAGE

    def items(self, seeds: Sequence[int]) -> list[Any]:
        """Random items of its modality. Seeds with the same remainder by 3 have the same size."""
        makers = {Modality.IMAGE: picture, Modality.AUDIO: recording, Modality.VIDEO: video}
        return [makers[self.modality](seed) for seed in seeds]


SIZES = (56, 56), (56, 112), (112, 56)
"""Width and height of pictures. InternVL and Llama 4 read the first as one tile."""


def picture(seed: int) -> Image.Image:
    """A picture of random pixels."""
    width, height = SIZES[seed % len(SIZES)]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


SAMPLE_RATE = 16_000

SECONDS = 0.5, 1.0, 2.0
"""The lengths of recordings."""


def recording(seed: int) -> npt.NDArray[np.float32]:
    """A recording of noise."""
    length = round(SAMPLE_RATE * SECONDS[seed % len(SECONDS)])
    return np.random.default_rng(seed).normal(0, 0.1, length).astype(np.float32)


FRAME_RATE = 4
FRAMES = 6, 8, 12
"""The lengths of videos: at most as many positions in time as in width. transformers 5.19 would let
the text after a longer video begin before the video's end.
"""


def video(seed: int) -> npt.NDArray[np.uint8]:
    """All frames of a video of noise."""
    shape = FRAMES[seed % len(FRAMES)], 56, 84, 3
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_multimodal(family: Family, folder: Path) -> str:
    """Writes a random model in float32 with its processor; returns its folder.

    Its weights vary so much that its texts do not repeat one token.
    """
    from transformers import AutoModelForMultimodalLM, AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model_path("target") / name, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = family.tokens
    tokenizer.add_special_tokens({"additional_special_tokens": list(texts)})
    if family.name == "gemma3":  # vLLM looks for these tokens of its vocabulary
        tokenizer.add_tokens(["\n" * count for count in range(1, 5)])
    if family.named_tokens:
        tokenizer.save_pretrained(folder)
        named_tokens = dict(family.named_tokens)
        tokenizer = AutoTokenizer.from_pretrained(folder, extra_special_tokens=named_tokens)
    numbers: Any = tokenizer.convert_tokens_to_ids(list(texts))
    ids = dict(zip(texts, numbers, strict=True))
    config = family.config(ids)
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                # Gemma multiplies embeddings, which are its output layer too, by this root.
                embedding = 0.05 / (weight.shape[-1] ** 0.5 if family.name == "gemma3" else 1)
                std = embedding if "embed" in name else 2 * weight.shape[-1] ** -0.5
                torch.nn.init.normal_(weight, std=std)
        output = model.get_output_embeddings().weight
        quiet = torch.full((len(output), 1), QUIET)
        quiet[LOUD.start : LOUD.stop] = 1.0
        output *= quiet
    model.save_pretrained(folder)
    _change_weights(folder / "model.safetensors", family)
    processor = family.processor(tokenizer)
    processor.save_pretrained(folder)
    return str(folder)


def _change_weights(path: Path, family: Family) -> None:
    """Gives weights the names that vLLM reads, and adds the MTP layer."""
    renamed = {}
    for name, weight in load_file(path).items():
        begin = next((begin for begin in family.renames if name.startswith(begin)), "")
        renamed[family.renames.get(begin, begin) + name.removeprefix(begin)] = weight
    if family.mtp is not None:
        renamed |= family.mtp.layers(renamed, TEXT["num_hidden_layers"])
    save_file(renamed, path, {"format": "pt"})
