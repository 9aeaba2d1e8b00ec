"""FLOPs of the matrix products of a compiled program, and the passes of the matrix unit that they take."""

import re

import numpy as np

from whale_jax.plan.hlo import Computation, HloError, Instruction

_PASSES = {"highest": 6, "high": 3}


def passes(where: Computation, instruction: Instruction) -> int:
    """Passes of the bf16 matrix unit: 1 for narrow operands, up to 6 for fp32 ones."""
    if all(shapes[0].dtype != "f32" for shapes in where.operand_shapes(instruction)):
        return 1
    precision = instruction.attribute("operand_precision") or ""
    return max((_PASSES.get(word.strip(), 1) for word in precision.split(",")), default=1)


def dot_flops(where: Computation, instruction: Instruction) -> float:
    """2 x entries of the result x contracted entries."""
    left = where.operand_shapes(instruction)[0][0]
    contracted = 1
    for dimension in instruction.numbers("lhs_contracting_dims"):
        contracted *= left.dims[dimension]
    return 2.0 * instruction.shapes[0].elements * contracted


def convolution_flops(where: Computation, instruction: Instruction) -> float:
    """A batched product may be a convolution over its batch, most places of which are padding: only real ones count."""
    left, right = (shapes[0] for shapes in where.operand_shapes(instruction)[:2])
    out = instruction.shapes[0]
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attribute("dim_labels") or "")
    if labels is None:
        raise HloError(f"convolution {instruction.name}: no dim_labels")
    of_left, of_right, of_out = labels[1], labels[2], labels[3]
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", instruction.attribute("window") or ""))
    spatial = [label for label in of_out if label.isdigit()]

    def setting(name: str, index: int, default: str) -> str:
        return window[name].split("x")[index] if name in window else default

    valid = 1
    for label in spatial:
        index = int(label)
        valid *= _valid_places(
            out=out.dims[of_out.index(label)],
            size=left.dims[of_left.index(label)],
            kernel=right.dims[of_right.index(label)],
            stride=int(setting("stride", index, "1")),
            low=int(setting("pad", index, "0_0").split("_")[0]),
            base=int(setting("lhs_dilate", index, "1")),
            dilation=int(setting("rhs_dilate", index, "1")),
        )
    batch_groups = int(instruction.attribute("batch_group_count") or 1)
    # The kernel's input features are already those of one feature group.
    return (
        2.0
        * valid
        * (left.dims[of_left.index("b")] // batch_groups)
        * right.dims[of_right.index("i")]
        * right.dims[of_right.index("o")]
    )


def _valid_places(*, out: int, size: int, kernel: int, stride: int, low: int, base: int, dilation: int) -> int:
    """Pairs (output place, kernel place) that meet an element of the input, along one dimension."""
    if stride == base == dilation == 1 and low == 0 and out + kernel - 1 <= size:
        return out * kernel
    targets = np.arange(out) * stride - low
    count = 0
    for place in range(kernel):
        at = targets + place * dilation
        count += int(np.count_nonzero((at % base == 0) & (at >= 0) & (at // base < size)))
    return count
