"""What this workspace asks of its config beyond poolish's own checks; both `prepare.py` and `train.py` obey it."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from poolish.serve import SharedConfig


class Stage(BaseModel):
    """Train batches before number ``until`` have this share of their characters masked."""

    model_config = ConfigDict(strict=True, extra="forbid")

    until: int = Field(gt=0)
    mask_probability: float = Field(gt=0, le=1)


class Config(SharedConfig):
    """The names that the provider and the trainer of this workspace rely on."""

    mask_probability: float = Field(gt=0, le=1)
    stages: list[Stage]
    ignore_index: int = Field(lt=0)  # 0 and above are characters
    val_fraction: float = Field(gt=0, lt=1)

    n_layer: int = Field(gt=0)
    n_head: int = Field(gt=0)
    n_embd: int = Field(gt=0)
    dropout: float = Field(ge=0, lt=1)

    learning_rate: float = Field(gt=0)
    warmup_steps: int = Field(ge=0)
    max_steps: int = Field(gt=0)
    evaluate_every: int = Field(gt=0)
    evaluate_batches: int = Field(gt=0)
    checkpoint_every: int = Field(gt=0)
    out_dir: str
    fill_in: list[str]


def validate(config: Config) -> Iterator[str]:
    """The rules that join several names, each broken one as a sentence."""
    if config.n_embd % (2 * config.n_head):
        yield (
            f"n_embd = {config.n_embd}: each of the {config.n_head} heads needs an even share; "
            f"use a multiple of {2 * config.n_head}"
        )
    ends = [stage.until for stage in config.stages]
    if ends != sorted(set(ends)):
        yield f"stages: 'until' must grow from stage to stage, got {ends}"
    for text in config.fill_in:
        if len(text) > config.block_size:
            yield f"fill_in: {text!r} has {len(text)} characters, the model sees {config.block_size} (block_size)"
