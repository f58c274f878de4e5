"""The polynomials of a move's sine and cosine on the Triton backend."""

import pytest
import torch

from support.engines import CAN_RUN, DEVICE, engines

triton = pytest.importorskip("triton")
tl = triton.language


@engines("triton")
def test_the_polynomials_err_by_less_than_eight_units(engine) -> None:
    angles = torch.linspace(-1.62, 1.62, 1 << 16, device=DEVICE)
    near, far = (torch.empty(2, len(angles), device=DEVICE) for _ in range(2))
    grid = (len(angles) // 1024,)
    store_cos_sin[grid](angles, near, len(angles), IS_NEAR=True)
    store_cos_sin[grid](400 * angles, far, len(angles), IS_NEAR=False)
    unit = 2.0**-24
    for actual, angle, slack in ((near, angles, 0.0), (far, 400 * angles, 8.0)):
        canonical = torch.stack([angle.double().cos(), angle.double().sin()])
        error = (actual.double() - canonical).abs() / unit
        assert bool((error <= 8 + slack * angle.double().abs()).all())


if CAN_RUN:
    from kgfast.kernels.triton.device.moves import far_cos_sin, near_cos_sin

    @triton.jit
    def store_cos_sin(p_angle, p_out, count, IS_NEAR: tl.constexpr):
        """Cosines and sines of 1024 angles."""
        place = tl.program_id(0) * 1024 + tl.arange(0, 1024)
        angle = tl.load(p_angle + place)
        if IS_NEAR:
            cosine, sine = near_cos_sin(angle)
        else:
            cosine, sine = far_cos_sin(angle, angle * 0.0)
        tl.store(p_out + place, cosine)
        tl.store(p_out + count + place, sine)
