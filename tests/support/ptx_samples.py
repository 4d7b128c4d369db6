"""Small PTX kernels written by hand, for the emulator's tests."""

from __future__ import annotations

import numpy as np

HEADER = ".version 8.6\n.target sm_100a\n.address_size 64\n"

# out[i] = x[i] * factor + bias, for i < n; a 1-D grid.
AXPB = (
    HEADER
    + """
.visible .entry axpb(.param .u64 x, .param .u64 out, .param .f32 factor, .param .f32 bias,
                     .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .f32 %f<5>;
  .reg .b64 %rd<8>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [n];
  setp.ge.u32 %p1, %r4, %r5;
  @%p1 bra DONE;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [out];
  ld.param.f32 %f1, [factor];
  ld.param.f32 %f2, [bias];
  mul.wide.u32 %rd3, %r4, 4;
  add.s64 %rd4, %rd1, %rd3;
  add.s64 %rd5, %rd2, %rd3;
  ld.global.f32 %f3, [%rd4];
  fma.rn.f32 %f4, %f3, %f1, %f2;
  st.global.f32 [%rd5], %f4;
DONE:
  ret;
}
"""
)

# One CTA copies a 16 x 32 f32 tile at (row, column) through shared memory with TMA and stores it
# back with TMA.
TMA_COPY = (
    HEADER
    + """
.visible .entry tma_copy(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128],
                         .param .u32 row, .param .u32 column)
{
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<6>;
  .shared .align 1024 .b8 tile[2048];
  .shared .align 8 .b8 bar[8];
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  mov.u32 %r2, bar;
  mov.u32 %r3, tile;
  mov.b64 %rd1, source;
  cvta.param.u64 %rd2, %rd1;
  mov.b64 %rd3, target;
  cvta.param.u64 %rd4, %rd3;
  ld.param.u32 %r4, [row];
  ld.param.u32 %r5, [column];
  mbarrier.init.shared::cta.b64 [%r2], 1;
  fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 2048;
  cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
      [%r3], [%rd2, {%r5, %r4}], [%r2];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
  @!%p2 bra WAIT;
  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {%r5, %r4}], [%r3];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
  ret;
}
"""
)

# One thread gathers four rows of 32 f32 with TMA and scatters them. Boxes have one row.
ROWS_COPY = (
    HEADER
    + """
.visible .entry rows_copy(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128])
{
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<6>;
  .shared .align 1024 .b8 tile[512];
  .shared .align 8 .b8 bar[8];
  mov.u32 %r2, bar;
  mov.u32 %r3, tile;
  mov.u32 %r4, 4;
  mov.b64 %rd1, source;
  cvta.param.u64 %rd2, %rd1;
  mov.b64 %rd3, target;
  cvta.param.u64 %rd4, %rd3;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
  cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
      [%r3], [%rd2, {0, 3, %r4, 3, 30}], [%r2];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
  @!%p2 bra WAIT;
  cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group
      [%rd4, {0, 1, %r4, 2, 0}], [%r3];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  ret;
}
"""
)

# Every thread adds its global index to one counter.
COUNTER = (
    HEADER
    + """
.visible .entry counter(.param .u64 total)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [total];
  mov.u32 %r1, %tid.x;
  red.global.add.u32 [%rd1], %r1;
  ret;
}
"""
)

# Never ends, and is never where it was before.
SPIN = (
    HEADER
    + """
.visible .entry spin()
{
  .reg .b32 %r1;
  mov.u32 %r1, 0;
LOOP:
  add.u32 %r1, %r1, 1;
  bra LOOP;
}
"""
)


def axpb_arguments(n: int = 100) -> tuple[np.ndarray, np.ndarray, float, float, int]:
    """Of AXPB: x, out (NaN until it is written), factor, bias and n."""
    x = np.arange(n, dtype=np.float32)
    return x, np.full_like(x, np.nan), 2.0, 1.0, n
