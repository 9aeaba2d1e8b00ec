"""The programs of a step, lowered for a mesh from shapes alone, and what each of them needs beside its arguments."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from whale_jax.plan import model_cost
from whale_jax.plan.cost import Kernel
from whale_jax.plan.live import Spread, live_lengths, mean_live_length, pages_in_use
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.cache import PAGE
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.paged import kernel_reads
from whale_jax.qwen3_5.params import Params, abstract_params
from whale_jax.qwen3_5.remat import Remat
from whale_jax.qwen3_5.sharding import (
    AXES,
    CACHE_TABLE,
    DATA,
    FSDP,
    ROWS,
    TENSOR,
    Placement,
    ShardingError,
    check,
    make_mesh,
)
from whale_jax.serving.driver import Sampling
from whale_jax.serving.sampling import MAX_STOP_IDS, Controls, sample
from whale_jax.training.optimizer import OptimizerName, OptimizerSettings, make_optimizer
from whale_jax.training.step import TrainStep

LOSS_CHUNK = 256
"""Tokens per chip whose logits exist at once in the training step."""

MAX_TOP_K = 20
"""As the engine's default."""


class Step(StrEnum):
    TRAIN = "train"
    EXTEND = "extend"
    DECODE = "decode"


@dataclass(frozen=True)
class Work:
    """What is planned.

    Attributes:
        batch: rows of a training step, or slots.
        seq_len: positions of a row, or the room of a slot.
        chunk_len: new tokens per row of an extend step.
        remat: what the backward pass of training recomputes.
        spread: of the live lengths of slots.
        dense: every slot has pages for its whole room; otherwise a replica has the pages that the live lengths take,
            and one more for every slot.
        optimizer: the update rule of training.
        compute_dtype: of activations, and of what serving keeps: weights, keys, values and conv windows.
    """

    config: Qwen35Config
    step: Step
    batch: int
    seq_len: int
    chunk_len: int = 512
    spread: Spread = Spread.LONG_TAIL
    dense: bool = False
    remat: Remat = Remat.LAYER
    optimizer: OptimizerName = OptimizerName.ADAMW
    compute_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("batch", "seq_len", "chunk_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be >= 1, got {getattr(self, name)}")

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry in the compute dtype."""
        return jnp.dtype(self.compute_dtype).itemsize

    @property
    def model_flops(self) -> float:
        """Of one step on all chips, as `model_cost` defines them; live lengths as it states."""
        live = mean_live_length(self.spread, self.batch, self.seq_len)
        if self.step is Step.TRAIN:
            return model_cost.train_flops(self.config, self.batch, self.seq_len)
        if self.step is Step.EXTEND:
            return model_cost.extend_flops(self.config, self.batch, self.chunk_len, live)
        return model_cost.decode_flops(self.config, self.batch, live)


@dataclass(frozen=True)
class Planned:
    """The programs of one step.

    Attributes:
        lowered: by name; a step runs each once.
        state_bytes: what lives on a chip whichever program runs, by kind.
        argument_kinds: for each program, the kinds of `state_bytes` that are among its arguments.
        unknown_trips: turns of the loops that walk data: the loss walks the tokens that are targets, all of them;
            serving's attention, where it gathers pages, up to the longest row's end, taken to be full.
        kernels: by a part of their name, what custom calls move and compute that the program's text does not tell.
        floor_bytes: the least bytes of main memory per chip, where that is defined (decode).
    """

    lowered: Mapping[str, jax.stages.Lowered]
    state_bytes: Mapping[str, int]
    argument_kinds: Mapping[str, tuple[str, ...]]
    unknown_trips: int | None
    floor_bytes: float | None
    kernels: Mapping[str, Kernel] = field(default_factory=dict)


def default_mesh(work: Work, chips: int, hbm_bytes: float | None) -> tuple[int, int, int]:
    """(data, fsdp, tensor) where the user names none.

    Training divides everything over `fsdp`, and over `tensor` only where there are fewer rows than chips. Serving keeps
    whole replicas: the smallest `tensor` with which weights and cache take at most 9/10 of a chip.

    Raises:
        ShardingError: no mesh of that kind divides the work.
    """
    heads = work.config.num_kv_heads
    splits = [tensor for tensor in range(1, heads + 1) if heads % tensor == 0 and chips % tensor == 0]
    splits = [tensor for tensor in splits if work.batch % (chips // tensor) == 0]
    if not splits:
        raise ShardingError(
            f"--batch={work.batch} cannot be divided over {chips} chips (up to {heads} chips share a row, one per "
            "key/value head); choose a multiple, or name --data, --fsdp and --tensor"
        )
    if work.step is Step.TRAIN:
        return 1, chips // splits[0], splits[0]
    weights = model_cost.parameter_count(work.config) * work.entry_bytes
    for tensor in splits:
        slots = work.batch * tensor // chips
        cache = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(_cache(work, slots, 1)))
        if hbm_bytes is None or (weights + cache) / tensor <= 0.9 * hbm_bytes:
            return chips // tensor, 1, tensor
    return chips // splits[-1], 1, splits[-1]


def programs(work: Work, mesh_shape: tuple[int, int, int], devices: Any) -> Planned:
    """Lowers the step.

    Raises:
        ShardingError: the mesh does not divide the model or the batch.
    """
    placement = Placement(work.config, make_mesh(*mesh_shape, devices=devices))
    check(work.config, placement.mesh, rows=work.batch)
    return _train(work, placement) if work.step is Step.TRAIN else _serve(work, placement)


def _train(work: Work, placement: Placement) -> Planned:
    step = TrainStep(
        work.config,
        make_optimizer(OptimizerSettings(name=work.optimizer)),
        sampling=Sampling(),
        loss_chunk=LOSS_CHUNK,
        compute_dtype=jnp.dtype(work.compute_dtype),
        placement=placement,
        remat=work.remat,
    )
    params = _bytes_per_chip(_params(work.config, placement, jnp.float32))
    tokens = work.batch // placement.row_shards * work.seq_len
    return Planned(
        lowered=step.lower(work.batch, work.seq_len),
        state_bytes={
            "parameters": params,
            "optimizer": _bytes_per_chip(step.opt_state_shapes()),
            "gradients": params,
        },
        argument_kinds={
            "accumulate": ("parameters", "gradients"),
            "apply": ("parameters", "optimizer", "gradients"),
        },
        unknown_trips=-(-tokens // min(LOSS_CHUNK, tokens)),
        floor_bytes=None,
    )


def _serve(work: Work, placement: Placement) -> Planned:
    """Replicas side by side: along `data` nothing is exchanged, so a chip runs what an engine of its own would."""
    config, mesh = work.config, placement.mesh
    if mesh.shape[FSDP] != 1:
        raise ShardingError(
            f"--fsdp={mesh.shape[FSDP]}: serving keeps whole replicas; it must be 1 for --step={work.step}"
        )
    dtype, entry_bytes = jnp.dtype(work.compute_dtype), work.entry_bytes
    params = _params(config, placement, dtype)
    cache = jax.tree.map(
        _placed, _cache(work, work.batch // placement.row_shards, placement.row_shards), placement.cache
    )
    rows = placement.on(PartitionSpec(ROWS))

    def per_slot(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((work.batch, *shape), dtype, sharding=rows)

    controls = Controls(
        per_slot(jnp.uint32, 2),
        per_slot(jnp.float32),
        per_slot(jnp.float32),
        per_slot(jnp.int32),
        per_slot(jnp.int32, MAX_STOP_IDS),
        per_slot(jnp.int32),
    )
    step, tokens = (_decode, per_slot(jnp.int32))
    if work.step is Step.EXTEND:
        step, tokens = _extend, per_slot(jnp.int32, work.chunk_len)

    def replica(params: Params, cache: model.Cache, tokens: Array, given: Array, controls: Controls) -> Any:
        hidden, cache = step(config, params, tokens, given, cache, dtype)
        return cache, sample(model.unembed(config, params, hidden), cache.length, controls, max_top_k=MAX_TOP_K)

    parts: Any = {
        name: PartitionSpec(*(axis if axis == ROWS else None for axis in axes)) for name, axes in CACHE_TABLE.items()
    }
    parts = model.Cache(**parts)
    of_row = PartitionSpec(ROWS)
    run = jax.shard_map(
        replica,
        mesh=mesh,
        in_specs=(PartitionSpec(), parts, of_row, of_row, of_row),
        out_specs=(parts, of_row),
        axis_names={DATA, FSDP} if mesh.shape[TENSOR] > 1 else set(AXES),
        check_vma=False,
    )

    given = per_slot(jnp.int32 if work.step is Step.EXTEND else jnp.bool_)
    lengths = live_lengths(work.spread, work.batch // placement.row_shards, work.seq_len)
    floor, kernels = None, {}
    if work.step is Step.DECODE:
        tensor = mesh.shape[TENSOR]
        by_kind = model_cost.decode_floor_bytes(
            config, len(lengths), sum(lengths) / len(lengths), weight_bytes=entry_bytes, cache_bytes=entry_bytes
        )
        floor = sum(by_kind.values()) / tensor
        per_position = 2 * config.num_kv_heads * config.head_dim * entry_bytes
        positions = sum(kernel_reads(length + 1, -(-work.seq_len // PAGE), PAGE) for length in lengths)
        flops = model_cost.attention_flops(config, sum(lengths)) / config.num_groups
        kernels["paged_attention"] = Kernel(positions * per_position / tensor, flops / tensor)
    return Planned(
        lowered={work.step.value: jax.jit(run, donate_argnums=1).lower(params, cache, tokens, given, controls)},
        state_bytes={"parameters": _bytes_per_chip(params), "cache": _bytes_per_chip(cache)},
        argument_kinds={work.step.value: ("parameters", "cache")},
        unknown_trips=-(-work.seq_len // PAGE),
        floor_bytes=floor,
        kernels=kernels,
    )


def _extend(
    config: Qwen35Config, params: Params, tokens_BxC: Array, count_B: Array, cache: model.Cache, dtype: Any
) -> tuple[Array, model.Cache]:
    """The hidden state [B, D] of each row's last token, as the engine's extend step takes it."""
    hidden, cache = model.extend(config, params, tokens_BxC, count_B, cache, compute_dtype=dtype)
    last = jnp.maximum(count_B - 1, 0)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0], cache


def _decode(
    config: Qwen35Config, params: Params, tokens_B: Array, active_B: Array, cache: model.Cache, dtype: Any
) -> tuple[Array, model.Cache]:
    return model.decode(config, params, tokens_B, active_B, cache, compute_dtype=dtype)


def _params(config: Qwen35Config, placement: Placement, dtype: Any) -> Any:
    return jax.tree.map(_placed, abstract_params(config, dtype), placement.params)


def _cache(work: Work, slots: int, replicas: int) -> Any:
    """Shapes of the caches of `replicas` side by side, `slots` each."""
    size = min(PAGE, work.seq_len)
    count = slots * -(-work.seq_len // size)
    if not work.dense:
        count = min(count, pages_in_use(live_lengths(work.spread, slots, work.seq_len), size) + slots)
    return jax.eval_shape(
        lambda: model.init_cache(
            work.config, slots * replicas, work.seq_len, jnp.dtype(work.compute_dtype), page_count=count * replicas
        )
    )


def _placed(leaf: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _bytes_per_chip(tree: Any) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(tree))
