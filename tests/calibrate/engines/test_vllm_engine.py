"""Starting vLLM's engine core, against stand-ins for the parts of vLLM that are used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from calibrate.engines.cli import main, parse_engine_args
from calibrate.engines.vllm_engine import start_vllm
from scenarios.build.resolve import resolve
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from sim.errors import FleetcastError
from tests.calibrate.engines.fake_core import BLOCK_SIZE, NUM_BLOCKS, FakeCore, FakeRequest

CONFIG = {"model_type": "llama", "vocab_size": 128_256}


def module(name: str, **content: Any) -> ModuleType:
    """Return a module with this content."""
    made = ModuleType(name)
    vars(made).update(content)
    return made


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put stand-ins into the place of vLLM and torch; the value fills with what they are given."""
    found: dict[str, Any] = {}
    scenario = {"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "H200"}}
    cost = resolve(parse_scenario({**scenario, "workload": ANY_WORKLOAD})).cost

    class EngineArgs:
        def __init__(self, **args: Any) -> None:
            found.update(args)

        def create_engine_config(self, usage_context: str) -> Any:
            if found.get("dtype") == "wrong":
                raise ValueError("Unknown dtype: wrong")
            return config()

    class Core(FakeCore):
        def __init__(self, config: Any, executor: Any, log_stats: bool) -> None:
            super().__init__(cost)
            self.model_executor = SimpleNamespace(driver_worker=None)

        def preprocess_add_request(self, request: Any) -> tuple[FakeRequest]:
            length, params = len(request.prompt_token_ids), request.sampling_params
            return (FakeRequest(request.request_id, length, params.max_tokens),)

    torch = module("torch", Tensor=list, cuda=SimpleNamespace(is_available=lambda: False))
    parts: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.25.1", "SamplingParams": SimpleNamespace},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.usage": {},
        "vllm.usage.usage_lib": {"UsageContext": SimpleNamespace(OPENAI_API_SERVER="server")},
        "vllm.v1": {},
        "vllm.v1.engine": {"EngineCoreRequest": SimpleNamespace},
        "vllm.v1.engine.core": {"EngineCore": Core},
        "vllm.v1.executor": {},
        "vllm.v1.executor.abstract": {"Executor": SimpleNamespace(get_class=lambda config: None)},
    }
    for name, content in parts.items():
        monkeypatch.setitem(sys.modules, name, module(name, **content))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return found


def config() -> Any:
    """Return an engine's configuration, as far as it is read."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=8192,
            max_num_seqs=1024,
            policy="fcfs",
            async_scheduling=False,
            enable_chunked_prefill=True,
        ),
        cache_config=SimpleNamespace(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=NUM_BLOCKS,
            gpu_memory_utilization=0.9,
            enable_prefix_caching=True,
            cache_dtype="auto",
        ),
        compilation_config=SimpleNamespace(
            mode=3, cudagraph_mode="FULL_AND_PIECEWISE", cudagraph_capture_sizes=[1, 2, 4]
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=SimpleNamespace(
            max_model_len=32768,
            get_vocab_size=lambda: 128_256,
            hf_config=SimpleNamespace(to_dict=lambda: CONFIG),
        ),
    )


def test_random_weights_take_a_config_and_load_nothing(
    given: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(CONFIG))
    driver, info = start_vllm(str(path), random_weights=True, engine_args={"max_model_len": 32768})
    assert given["load_format"] == "dummy"
    assert given["max_model_len"] == 32768
    assert json.loads((Path(given["model"]) / "config.json").read_text()) == CONFIG
    assert info["model_name"] == "tiny"
    assert info["hf_config"] == CONFIG
    assert (info["num_gpu_blocks"], info["async_scheduling"]) == (NUM_BLOCKS, False)
    assert info["compilation"]["sizes"] == [1, 2, 4]
    driver.add(driver.request(100, 3))
    driver.drain()
    assert [step.prefill_tokens for step in driver.steps] == [100, 0, 0]


def test_a_checkpoint_is_named_as_vllm_names_it(given: dict[str, Any]) -> None:
    _, info = start_vllm("org/model", random_weights=False, engine_args={})
    assert given["model"] == info["model_name"] == "org/model"
    assert "load_format" not in given


def test_what_does_not_start_is_said_with_vllms_reason(given: dict[str, Any]) -> None:
    with pytest.raises(FleetcastError, match="does not start org/model: Unknown dtype"):
        start_vllm("org/model", random_weights=False, engine_args={"dtype": "wrong"})
    with pytest.raises(FleetcastError, match="add --random-weights"):
        start_vllm("tiny.json", random_weights=False, engine_args={})


def test_without_vllm_the_message_says_where_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert main(["--model", "org/model", "--out", str(tmp_path)]) == 2
    assert "the environment that serves" in capsys.readouterr().err


def test_engine_arguments_are_a_mapping() -> None:
    assert parse_engine_args('{"max_num_seqs": 256}') == {"max_num_seqs": 256}
    for text in ("[1]", "max_num_seqs=256"):
        with pytest.raises(FleetcastError, match="engine arguments"):
            parse_engine_args(text)
