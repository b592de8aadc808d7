"""Weights of 8 and 4 bits in the embedded engine. torchao is no part of the environment, so what needs it runs in a process that has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quantised import FOLDER, IdCodec, model_of
from models.engine.embedded import EmbeddedEngine
from models.engine.settings import EngineSettings
from tests.sandbox.own_source import ROOT
from warehouse.core.errors import ConfigError

LOOK = """
import asyncio, copy, torch
from benchmarks.quantised import IdCodec, model_of
from models.engine.quantised import QuantisedLinears, weight_bytes
from models.engine.hf_backend import HuggingFaceBackend
from warehouse.core.errors import ModelError

ids = torch.randint(1, 8000, (2, 16), generator=torch.Generator().manual_seed(0))
full = model_of(128, 2)
state = {name: tensor.clone() for name, tensor in full.state_dict().items()}
with torch.inference_mode():
    expected = full(ids).logits.log_softmax(dim=-1)
    for kind, most in (("int8", 1e-3), ("int4", 0.3)):
        model = copy.deepcopy(full)
        backend = HuggingFaceBackend(model, frozenset([1]), kind)
        rounded = model(ids).logits
        assert 0 < float((expected.exp() * (expected - rounded.log_softmax(dim=-1))).sum(dim=-1).mean()) < most, kind
        linear = full.model.layers[0].mlp.up_proj.weight.nbytes
        assert weight_bytes(model.model.layers[0].mlp.up_proj) < 0.32 * linear
        backend.load({name: 2 * tensor for name, tensor in state.items()})
        assert not torch.equal(model(ids).logits, rounded)
        for wrong in ({**state, "extra": ids}, {**state, "model.layers.0.mlp.up_proj.weight": ids}):
            try:
                backend.load(wrong)
            except ModelError:
                continue
            raise AssertionError("weights that do not fit were taken")
        backend.load(state)
        assert torch.equal(model(ids).logits, rounded), "weights that are handed over are rounded as those that were opened"
narrow = model_of(64, 1)
narrow.model.layers[0].mlp.up_proj = torch.nn.Linear(40, 256)
try:
    QuantisedLinears(narrow, "int4")
except ModelError as error:
    assert "up_proj (40)" in str(error)
else:
    raise AssertionError("40 inputs share no scales of 32")
print("rounded")
"""


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_without_torchao_the_extra_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"pip install 'flywheel\[quantised\]'"):
        EmbeddedEngine(model_of(64, 1), IdCodec(), "checkpoint-0", settings=EngineSettings.model_validate({"quantisation": kind}))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_answers_by_rounded_weights_and_weights_that_are_handed_over() -> None:
    options = ["--rounds", "1", "--hidden", "128", "--layers", "2"]
    measured = subprocess.run([sys.executable, "-m", "benchmarks.quantised", *options], cwd=ROOT, capture_output=True, text=True)
    assert measured.returncode == 0 and "speed, int4" in measured.stdout, measured.stdout + measured.stderr
    paths = os.pathsep.join([str(ROOT / FOLDER), str(Path(ROOT))])
    looked = subprocess.run([sys.executable, "-c", LOOK], cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert looked.stdout.strip() == "rounded", looked.stdout + looked.stderr
