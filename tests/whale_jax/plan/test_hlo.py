"""Reading compiled programs: shapes, loop counts, FLOPs, collectives and bytes, on small known programs."""

import jax
import jax.numpy as jnp
import pytest

from whale_jax.plan.cost import Collective, cost_of
from whale_jax.plan.hlo import HloError, Shape, parse
from whale_jax.plan.loops import trip_count


def compiled(function, *arguments):
    return parse(jax.jit(function).lower(*arguments).compile().as_text())


def trips(program):
    """The counts of all loops of the entry computation, in order."""
    return [trip_count(program, program.entry, i, {}) for i in program.entry.instructions if i.opcode == "while"]


SQUARE = jax.ShapeDtypeStruct((32, 32), jnp.float32)


def test_flops_of_nested_loops_count_every_turn():
    def function(x):
        def outer(x, _):
            x, _ = jax.lax.scan(lambda y, _: (y @ y, None), x, length=5)
            return x @ x, None

        return jax.lax.scan(outer, x, length=7)[0]

    program = compiled(function, SQUARE)
    assert cost_of(program).flops == 7 * (5 + 1) * 2 * 32**3


@pytest.mark.parametrize(("start", "stop", "turns"), [(0, 9, 9), (3, 9, 6), (9, 3, 0)])
def test_trip_count_of_a_loop_between_bounds(start, stop, turns):
    def function(x):
        return jax.lax.while_loop(lambda c: c[0] < stop, lambda c: (c[0] + 1, c[1] @ c[1]), (start, x))[1]

    assert cost_of(compiled(function, SQUARE)).flops == turns * 2 * 32**3


def test_trip_count_of_a_loop_with_steps():
    def function(x):
        return jax.lax.while_loop(lambda c: c[0] <= 20, lambda c: (c[0] + 3, c[1] @ c[1]), (0, x))[1]

    assert trips(compiled(function, SQUARE)) == [7]


def test_a_bound_from_data_has_no_count():
    def function(x, n):
        return jax.lax.fori_loop(0, n, lambda _, y: y @ y, x)

    program = compiled(function, SQUARE, jax.ShapeDtypeStruct((), jnp.int32))
    assert trips(program) == [None]
    with pytest.raises(HloError, match="its bound is computed from data"):
        cost_of(program)
    cost = cost_of(program, unknown_trips=11)
    assert cost.flops == 11 * 2 * 32**3
    assert len(cost.unknown_loops) == 1


def test_batched_and_contracted_products():
    a, b = jnp.zeros((3, 8, 16)), jnp.zeros((3, 16, 4))
    assert cost_of(compiled(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), a, b)).flops == 2 * 3 * 8 * 16 * 4


# A TPU program's idioms, cut to what they are about.
TPU = """HloModule jit_f, is_scheduled=true, num_partitions=4

%fused (p0: f32[2,512,1024], p1: f32[2,512,1024]) -> f32[2,512,512] {
  %p0 = f32[2,512,1024]{2,1,0:T(8,128)} parameter(0)
  %p1 = f32[2,512,1024]{2,1,0:T(8,128)} parameter(1)
  ROOT %convolution.1 = f32[2,512,512]{2,1,0:T(8,128)} convolution(%p0, %p1), window={size=2 lhs_dilate=2}, \
dim_labels=0bf_0oi->0bf, operand_precision={highest,highest}
}

%start (p2: bf16[256,2048]) -> (bf16[256,2048], bf16[1024,2048]) {
  %p2 = bf16[256,2048]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.1 = bf16[1024,2048]{1,0:T(8,128)(2,1)} all-gather(%p2), channel_id=16, \
replica_groups=mesh['axis_0'=4,'axis_1'=1] {'axis_0'}, dimensions={0}
  ROOT %custom-call.1 = (bf16[256,2048]{1,0}, bf16[1024,2048]{1,0}) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (p3: bf16[256,2048]) -> bf16[1024,2048] {
  %p3 = bf16[256,2048]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %all-gather.2 = bf16[1024,2048]{1,0:T(8,128)(2,1)S(1)} all-gather(%p3), channel_id=16, \
replica_groups=mesh['axis_0'=4,'axis_1'=1] {'axis_0'}, dimensions={0}
}

%update (p4: f32[64,128], p5: f32[1,128], p6: s32[]) -> f32[64,128] {
  %p4 = f32[64,128]{1,0} parameter(0)
  %p5 = f32[1,128]{1,0} parameter(1)
  %p6 = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %dynamic-update-slice.1 = f32[64,128]{1,0} dynamic-update-slice(%p4, %p5, %p6, %zero)
}

%read (p7: f32[64,128], p8: s32[]) -> f32[1,128] {
  %p7 = f32[64,128]{1,0} parameter(0)
  %p8 = s32[] parameter(1)
  %none = s32[] constant(0)
  ROOT %dynamic-slice.1 = f32[1,128]{1,0} dynamic-slice(%p7, %p8, %none), dynamic_slice_sizes={1,128}
}

%wrapped (p9: f32[64,128], p10: s32[]) -> f32[1,128] {
  %p9 = f32[64,128]{1,0} parameter(0)
  %p10 = s32[] parameter(1)
  ROOT %inner = f32[1,128]{1,0} fusion(%p9, %p10), kind=kLoop, calls=%read
}

ENTRY %main (a: f32[2,512,1024], w: bf16[256,2048], big: f32[64,128], row: f32[1,128], at: s32[]) -> f32[2,512,512] {
  %a = f32[2,512,1024]{2,1,0:T(8,128)S(1)} parameter(0)
  %w = bf16[256,2048]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %big = f32[64,128]{1,0} parameter(2)
  %row = f32[1,128]{1,0:S(1)} parameter(3)
  %at = s32[]{:S(2)} parameter(4)
  %begin = (bf16[256,2048]{1,0:S(1)}, bf16[1024,2048]{1,0:S(1)}) fusion(%w), kind=kCustom, calls=%start
  %beside = bf16[1024,2048]{1,0:S(1)} fusion(%w), kind=kOutput, calls=%async_collective_fusion.1
  %updated = f32[64,128]{1,0} fusion(%big, %row, %at), kind=kLoop, calls=%update
  %taken = f32[1,128]{1,0:S(1)} fusion(%updated, %at), kind=kLoop, calls=%wrapped
  %sum = f32[512]{0:S(1)} all-reduce(%row), replica_groups=[2,2]<=[4], to_apply=%read
  ROOT %product = f32[2,512,512]{2,1,0:T(8,128)} fusion(%a, %a), kind=kOutput, calls=%fused
}
"""


def test_tpu_program():
    cost = cost_of(parse(TPU))
    product = 2 * 2 * 512 * 512 * 1024
    assert cost.flops == product, "a batched product is a convolution whose padding does not count"
    assert cost.mxu_flops == 6 * product, "an fp32 product at highest precision takes six passes"
    shard = 256 * 2048 * 2
    assert cost.collectives["all-gather"] == Collective(1, 3 * shard), "once, though it runs beside other work"
    assert cost.collectives["all-reduce"] == Collective(1, 128 * 4), "2 x bytes x (2 - 1) / 2"
    row, result = 128 * 4, 2 * 512 * 512 * 4
    assert cost.hbm_bytes == row + row + result, "a row written, a row read (by a fusion in a fusion), the result"


def test_shapes():
    assert Shape("bf16", (3, 5)).bytes == 30
    assert Shape("pred", (7,)).bytes == 7
    assert Shape("s4", (8,)).bytes == 4
    assert Shape("f32", ()).bytes == 4


def test_declared_kernel_costs_count():
    text = """HloModule m

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %k = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"custom_call_config": \
{"cost_estimate":{"flops":"4096","transcendentals":"0","bytes_accessed":"64"}}}
}
"""
    assert cost_of(parse(text)).flops == 4096


def test_other_text_is_refused():
    with pytest.raises(HloError, match="no entry computation"):
        parse("HloModule nothing\n")
