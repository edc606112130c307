"""The element types of OpenVINO, by dtype."""

from __future__ import annotations

import openvino
import torch

ELEMENTS = {
    torch.float32: openvino.Type.f32,
    torch.float16: openvino.Type.f16,
    torch.bfloat16: openvino.Type.bf16,
    torch.float64: openvino.Type.f64,
    torch.bool: openvino.Type.boolean,
    torch.uint8: openvino.Type.u8,
    torch.int8: openvino.Type.i8,
    torch.int16: openvino.Type.i16,
    torch.int32: openvino.Type.i32,
    torch.int64: openvino.Type.i64,
}
