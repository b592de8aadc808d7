"""For vLLM's CPU build beside PyPI's torchvision, whose library is compiled for GPUs and cannot be loaded there: without two operators of
that library importing torchvision fails, and vLLM reads no pictures. Nothing here calls them. Python runs this at its start where the
folder is on its path.
"""

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # kept: with it goes what it defines
for operator in ("nms", "qnms"):
    LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
