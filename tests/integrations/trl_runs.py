"""Runs in TRL's GRPO with a tiny model made from a config: nothing is downloaded."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from poolish import DatasetBuffer
from poolish.integrations.trl import prompts_of, recording

warnings.simplefilter("ignore")

WORDS = ["<pad>", "<end>", "<unknown>", "flour", "water", "salt", "rye", "bread", "and"]


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unknown>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unknown>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **special)


def train(folder: str, checkpoint: Any = None, **options: Any) -> Any:
    """Three steps of GRPO, one epoch of six prompts; every completion is recorded."""
    torch.manual_seed(0)
    prompts, played = DatasetBuffer(), DatasetBuffer()
    pairs = [(one, two) for one in WORDS[3:6] for two in WORDS[6:8]]
    prompts.append([{"question": f"{one} and {two}", "id": i} for i, (one, two) in enumerate(pairs)])

    def likes_bread(completions: list[str], **_: Any) -> list[float]:
        return [float(text.count("bread")) for text in completions]

    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), eos_token_id=1, bos_token_id=1, pad_token_id=0, **size))
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_steps": 1}
    sizes = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 4, "max_steps": 3}
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(folder, **{**quiet, **sizes, **options}),
        processing_class=tokenizer(),
        train_dataset=prompts_of(prompts, prompt="question"),
        reward_funcs=recording(played, likes_bread, columns=["id"]),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return {"played": played.to_pydict(), "steps": trainer.state.global_step, "reward": trainer.reward_func_names}
