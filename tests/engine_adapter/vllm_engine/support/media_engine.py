"""An engine in this process over a small multimodal model, and the texts of its requests."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.media import Modality, Video, VideoSource
from engine_adapter.seam.types import NONE, SpecDecodeParams, SpecMethod, Switch
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.target_media import VideoForm
from engine_adapter.vllm_engine.wire import switch_to_wire, to_extra_args
from tests.engine_adapter.proposers.dflash2_heads import dflash2
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.proposers.eagle_heads import eagle, eagle3
from tests.engine_adapter.proposers.gemma4_assistants import assistant
from tests.engine_adapter.proposers.heads import Heads, medusa, mlp_speculator
from tests.engine_adapter.vllm_engine.support.multimodal_models import (
    FRAME_RATE,
    SAMPLE_RATE,
    TEXT,
    Family,
)
from tests.engine_adapter.vllm_engine.support.plain_gated_delta import compute_in_any_dtype
from tests.engine_adapter.vllm_engine.support.window_models import write_random_model

CHUNK = 24
"""Tokens of a step: fewer than a prompt, and than some items."""

NOT_OF_THE_MODEL = "num_crops", "num_soft_tokens_per_image", "num_patches", "aspect_ratios"
"""What an image processor returns for the text's processor alone."""

OF_LAYERS = "eagle3", "dflash", "dflash2", "dspark", "mlp"
MODELS = ("draft", "eagle", "medusa", "mtp", *OF_LAYERS)

Prompt = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids with a placeholder for each item, and the seeds of the items."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got.

    Attributes:
        prompt: with the tokens of its items.
        drafted: the drafts that were verified.
        accepted: how many of them are tokens of the answer.
    """

    tokens: tuple[int, ...]
    prompt: tuple[int, ...]
    drafted: int
    accepted: int


class MediaEngine:
    """The engine.

    Args:
        family: of the model.
        folder: that has it.
        proposers: as `--proposer` takes them.
        arguments: of vLLM's, besides the usual ones.

    Attributes:
        models: its draft models and heads.
        placeholder: the tokens that stand for an item in a prompt.
        preemptions: of all answers.
    """

    def __init__(
        self,
        family: Family,
        folder: str,
        proposers: Sequence[Mapping[str, Any]],
        **arguments: Any,
    ) -> None:
        from vllm import LLMEngine

        from engine_adapter.vllm_engine.gateway import arguments as vllm_arguments

        specs = parse_specs(proposers)
        self.models = [name for name in MODELS if name in {spec.name for spec in specs}]
        fields = {
            "dtype": "float32",
            "max_model_len": 512,
            "max_num_seqs": 8,
            "block_size": 32,
            "max_num_batched_tokens": CHUNK,
            "kv_cache_memory_bytes": 8 << 20,
            **arguments,
        }
        config = EngineConfig(folder, "small", specs, None, fields)
        vllm_arguments.prepare_environment(config)
        args = vllm_arguments.engine_args(config, 4, None)
        self._engine: Any = LLMEngine.from_vllm_config(vllm_arguments.engine_config(args))
        tokenizer = self._engine.renderer.tokenizer
        placeholder = tokenizer.encode(family.placeholder, add_special_tokens=False)
        self.placeholder: tuple[int, ...] = tuple(placeholder)
        self._family = family
        self.preemptions, self._number = 0, 0
        # Request id -> its drafts, and the accepted ones.
        self._drafts: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._count()

    def _count(self) -> None:
        """Counts preemptions and drafts from now on."""
        scheduler = self._scheduler
        preempt, verified = scheduler._preempt_request, scheduler.row_table.count_verified

        def count_preemption(*arguments: Any, **options: Any) -> Any:
            self.preemptions += 1
            return preempt(*arguments, **options)

        def count_drafts(request_id: str, drafted: int, accepted: int) -> None:
            key = request_id.rpartition("-")[0] or request_id
            before = self._drafts[key]
            self._drafts[key] = before[0] + drafted, before[1] + accepted
            verified(request_id, drafted, accepted)

        scheduler._preempt_request = count_preemption
        scheduler.row_table.count_verified = count_drafts

    @property
    def _scheduler(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler

    @property
    def worker(self) -> Any:
        """vLLM's, with Specgate's hooks."""
        return self._engine.engine_core.engine_core.model_executor.driver_worker.worker

    @property
    def modalities(self) -> set[str]:
        """Those that the model takes."""
        limits = self._engine.renderer.get_mm_processor().info.allowed_mm_limits
        return {modality for modality, limit in limits.items() if limit}

    def reset_prefix_cache(self) -> None:
        """Forgets all cached blocks."""
        assert self._engine.reset_prefix_cache()

    def answers(
        self,
        prompts: Sequence[Prompt],
        method: str,
        *,
        switches: Sequence[str] = (),
        count: int = 24,
        predictions: Sequence[tuple[int, ...]] = (),
    ) -> list[Answer]:
        """The greedy answers to prompts that run together.

        Args:
            method: a proposer, or `none`.
            switches: proposers to which all running requests change, one after every third step.
            count: tokens of the first answer; each other has one more than the one before.
            predictions: the output that each prompt predicts.
        """
        from vllm import SamplingParams

        ids = []
        for number, (tokens, seeds) in enumerate(prompts):
            k = 0 if method == NONE else 3
            predicted = predictions[number] if predictions else ()
            spec = SpecDecodeParams(
                SpecMethod(method, k), pinned=not switches, prediction=predicted
            )
            params = SamplingParams(
                temperature=0,
                max_tokens=count + number,
                ignore_eos=True,
                extra_args=to_extra_args(spec),
            )
            ids.append(f"r{self._number}")
            self._number += 1
            self._engine.add_request(ids[-1], self._input(tokens, seeds), params)
        answers: dict[str, Answer] = {}
        steps = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens = tuple(output.outputs[0].token_ids)
                answers[output.request_id] = Answer(
                    tokens, tuple(output.prompt_token_ids), *self._drafts[output.request_id]
                )
            steps += 1
            if switches and steps % 3 == 0:
                chosen = switches[steps // 3 % len(switches)]
                self._switch(SpecMethod(chosen, 0 if chosen == NONE else 3), steps)
        return [answers[request_id] for request_id in ids]

    def _switch(self, method: SpecMethod, epoch: int) -> None:
        core = self._engine.engine_core.engine_core
        core.specgate_switch(*switch_to_wire(Switch(method, self._number * 1000 + epoch)))

    def _input(self, tokens: Sequence[int], seeds: Sequence[int]) -> Any:
        prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        if seeds:
            items = self._family.items(seeds)
            if self._family.modality is Modality.VIDEO:
                items = [self._with_metadata(frames) for frames in items]
            prompt["multi_modal_data"] = {self._family.modality: items}
        return self._engine.renderer.process_for_engine(prompt, 0.0, skip_mm_cache=True)

    def _with_metadata(self, frames: npt.NDArray[np.uint8]) -> Any:
        """The frames that the model reads of a video, and vLLM's dictionary about them."""
        form = VideoForm(self._engine.vllm_config.model_config)
        source = VideoSource(len(frames), FRAME_RATE)
        numbers = tuple(form.choose_frames(source))
        return form.item(Video(frames[list(numbers)], numbers, source))

    def stop(self) -> None:
        """Ends the engine."""
        self._engine.engine_core.shutdown()
        self._engine.renderer.shutdown()


def media_engine(
    patch: pytest.MonkeyPatch, family: Family, folder: Path, **arguments: Any
) -> MediaEngine:
    """An engine with lookups, a draft model of text alone, and heads; in this process.

    Gated delta networks compute in float32.

    Args:
        folder: of the model; heads and the draft model are written beside it.
    """
    patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # The engine's core is in this process, and other tests need vLLM's own method.
    manager = compat.StructuredOutputManager
    patch.setattr(manager, "_create_grammar", manager._create_grammar)
    compute_in_any_dtype(patch.setattr)
    heads = folder.parent
    width, vocabulary = TEXT["hidden_size"], TEXT["vocab_size"]
    layer = {**TEXT, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    layer |= {"num_hidden_layers": 1, "rms_norm_eps": 1e-5}
    if not (heads / "draft").exists():
        write_random_model(heads / "draft", "llama", TEXT)
        eagle(layer).write(heads / "eagle")
        medusa(hidden=width, vocabulary=vocabulary).write(heads / "medusa")
    proposers: list[dict[str, Any]] = [
        {"name": "ngram", "prompt_lookup_min": 1},
        {"name": "suffix"},
        {"name": "draft", "method": "draft_model", "model": str(heads / "draft")},
        {"name": "eagle", "model": str(heads / "eagle")},
        {"name": "medusa", "model": str(heads / "medusa")},
        {"name": "prediction"},
        {"name": "cascade", "members": ["ngram", "draft"]},
    ]
    if family.mtp:
        proposers.append({"name": "mtp"})
    if family.has_assistant:
        proposers.append({"name": "mtp", "model": _write_assistant(folder)})
    if family.shows_layers:
        proposers += _heads_of_layers(layer, heads)
    proposers = [proposer | {"num_speculative_tokens": 3} for proposer in proposers]
    return MediaEngine(family, str(folder), proposers, **arguments)


def _heads_of_layers(fields: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Writes heads that read two layers of the target, and an MLP speculator; the proposers.

    Args:
        fields: the configuration of a layer.
    """
    layers = [0, 1]
    heads = {
        "eagle3": eagle3(fields, aux_layers=layers),
        "dflash": dflash(fields, target_layers=layers),
        "dflash2": dflash2(fields, target_layers=layers),
        "dspark": dspark(fields, target_layers=layers),
        "mlp": mlp_speculator(hidden=TEXT["hidden_size"], vocabulary=TEXT["vocab_size"]),
    }
    methods = {"dflash2": "dflash", "mlp": "mlp_speculator"}
    return [
        {"name": name, "method": methods.get(name, name), "model": head.write(folder / name)}
        for name, head in heads.items()
    ]


def _write_assistant(target: Path) -> str:
    """Writes an assistant for a target of Gemma 4 beside it; returns its folder."""
    text = json.loads((target / "config.json").read_text())["text_config"]
    tensors = load_file(target / "model.safetensors")
    output = {"lm_head.weight": tensors["lm_head.weight"]}
    return assistant(Heads(text, output)).write(target.parent / "assistant")


class MediaReference:
    """The model of transformers in float32.

    Args:
        family: of the model.
        folder: that has it.
    """

    def __init__(self, family: Family, folder: str) -> None:
        from transformers import AutoModelForMultimodalLM, AutoProcessor

        self._family = family
        self._model = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._processor = AutoProcessor.from_pretrained(folder)

    def tokens(self, prompt: Sequence[int], seeds: Sequence[int], count: int) -> tuple[int, ...]:
        """The greedy continuation of a prompt with the tokens of its items."""
        inputs: dict[str, Any] = {}
        if seeds and self._family.modality is Modality.AUDIO:
            inputs = self._features_of_recordings(seeds)
        elif seeds and self._family.modality is Modality.VIDEO:
            inputs = self._features_of_videos(prompt, seeds)
        elif seeds:
            inputs = self._features_of_pictures(prompt, seeds)
        options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        options |= {"max_new_tokens": count, "min_new_tokens": count}
        with torch.inference_mode():
            made = self._model.generate(torch.tensor([list(prompt)]), **inputs, **options)
        return tuple(made[0, len(prompt) :].tolist())

    def _features_of_pictures(self, prompt: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
        features = self._processor.image_processor(self._family.items(seeds), return_tensors="pt")
        inputs = dict(features.to(torch.float32))  # Llama 4's are in bfloat16
        for counts in NOT_OF_THE_MODEL:
            inputs.pop(counts, None)
        if "image_grid_thw" in inputs:  # positions have several dimensions
            is_image = torch.tensor([list(prompt)]) == self._model.config.image_token_id
            inputs["mm_token_type_ids"] = is_image.int()
        return inputs

    def _features_of_videos(self, prompt: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
        videos = self._family.items(seeds)
        sources = [
            {
                "total_num_frames": len(frames),
                "fps": FRAME_RATE,
                "duration": len(frames) / FRAME_RATE,
            }
            for frames in videos
        ]
        features = self._processor.video_processor(
            videos, video_metadata=sources, do_sample_frames=True, fps=2, return_tensors="pt"
        )
        inputs = dict(features)
        is_video = torch.tensor([list(prompt)]) == self._model.config.video_token_id
        inputs["mm_token_type_ids"] = 2 * is_video.int()
        return inputs

    def _features_of_recordings(self, seeds: Sequence[int]) -> dict[str, Any]:
        features = self._processor.feature_extractor(
            self._family.items(seeds),
            sampling_rate=SAMPLE_RATE,
            return_attention_mask=True,
            return_tensors="pt",
        )
        if "attention_mask" in features:  # of Whisper's extractor
            features["feature_attention_mask"] = features.pop("attention_mask")
        return dict(features)
