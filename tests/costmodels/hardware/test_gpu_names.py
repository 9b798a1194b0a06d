"""Names of devices as drivers, clouds and people write them."""

from __future__ import annotations

import pytest

from costmodels.datafile import read_data
from costmodels.hardware.gpu_names import FILES, find_gpu, gpu_note
from costmodels.hardware.gpus import gpu_names, load_gpu
from scenarios.build.resolve import resolve
from scenarios.schema import Scenario
from sim.errors import ScenarioError


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("H100-PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM-32GB"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB10", "GB10"),
        ("DGX Spark", "GB10"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Blackwell"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("rtx3090", "RTX-3090"),
        ("5090", "RTX-5090"),
        ("RTX 5090 32GB", "RTX-5090"),
        ("A10", "A10"),
        ("A10G-24GB", "A10G"),
        ("A40", "A40"),
        ("L40", "L40"),
        ("L20", "L20"),
        ("AMD Instinct MI300X OAM", "MI300X"),
    ],
)
def test_names_of_drivers_and_shops(spelled: str, name: str) -> None:
    assert load_gpu(spelled).name == name
    assert gpu_note(spelled) is None


@pytest.mark.parametrize(
    ("spelled", "name", "count"),
    [
        ("p5.48xlarge", "H100-SXM", 8),
        ("p4d.24xlarge", "A100-SXM-40GB", 8),
        ("g5.12xlarge", "A10G", 4),
        ("g6e.xlarge", "L40S", 1),
        ("a3-megagpu-8g", "H100-SXM", 8),
        ("a2-ultragpu-4g", "A100-SXM-80GB", 4),
        ("Standard_ND96isr_H100_v5", "H100-SXM", 8),
        ("NC40ads_H100_v5", "H100-NVL", 1),
        ("8xH100", "H100-SXM", 8),
        ("L40S:4", "L40S", 4),
        ("gpu_1x_gh200", "GH200", 1),
    ],
)
def test_names_that_say_how_many_are_in_a_node(spelled: str, name: str, count: int) -> None:
    gpu = load_gpu(spelled)
    assert (gpu.name, gpu.fabric_gpus) == (name, count)
    note = gpu_note(spelled)
    assert note is not None
    assert f"nodes of {count} {name}" in note


def test_an_instance_has_its_own_network_and_a_rack_its_own_domain() -> None:
    # 400 Gbit/s over 8 devices, where other nodes of A100 have 200 each.
    assert load_gpu("p4d.24xlarge").network_bytes_per_s == pytest.approx(6.25e9)
    assert load_gpu("p6e-gb200.36xlarge").fabric_gpus == 72


def test_every_instance_type_is_of_a_known_device() -> None:
    for name, (gpu, count, gbit_per_s) in read_data("hardware/instances.yaml")["instances"].items():
        assert find_gpu(gpu).name == gpu, name
        assert count >= 1
        assert gbit_per_s is None or gbit_per_s > 0
        assert find_gpu(name.replace("*", "x")).name == gpu


def test_no_spelling_stands_for_two_devices() -> None:
    known: dict[str, str] = {}
    for file in FILES:
        for name, row in read_data(f"hardware/{file}")["gpus"].items():
            for spelling in (name, *row.get("aliases", ())):
                key = "".join(filter(str.isalnum, spelling.casefold()))
                assert known.setdefault(key, name) == name, spelling
    assert len(gpu_names()) > 60


@pytest.mark.parametrize(
    ("spelled", "said", "unsaid"),
    [
        ("h220", "H200-SXM", "H100"),
        ("H100 96GB", "H100-SXM, H100-PCIe, H100-NVL", "H200"),
        ("A10-24Q", "A10", "A100"),
        ("GB11", "GB10", "GB200"),
        ("gizmo", "fleetcast list gpus", "did you mean"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "MIG slice", "did you mean"),
    ],
)
def test_an_unknown_device_is_answered_by_its_own_generation(
    spelled: str, said: str, unsaid: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        load_gpu(spelled)
    assert said in str(error.value)
    assert unsaid not in str(error.value).replace(repr(spelled), "")
    assert "hardware.gpu takes a YAML file" in str(error.value)


def test_what_was_made_of_an_instance_is_said_and_splits_nodes() -> None:
    def replica(gpu: str) -> object:
        return resolve(
            Scenario.model_validate(
                {
                    "model": "llama-3.1-70b",
                    "hardware": {"gpu": gpu},
                    "engine": {"tensor_parallel_size": 8},
                    "workload": {"preset": "azure-conv", "rate_per_s": 1, "num_requests": 1},
                }
            )
        )

    found = replica("g5.12xlarge")
    assert found.layout.gpus_per_node == 4  # type: ignore[attr-defined]
    assert "nodes of 4 A10G" in found.notes[0]  # type: ignore[attr-defined]
