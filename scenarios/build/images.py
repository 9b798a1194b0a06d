"""Images of requests: tokens of their prompts, and the time of the tower that makes them.

An image is as many new tokens as the tower's patches join to, and is never shared. The tower runs
in the step that computes those tokens, as in vLLM; over all prompts its work is spread evenly on
their new tokens.
"""

from __future__ import annotations

from dataclasses import replace

from costmodels.models.catalog import load_model
from costmodels.models.spec import ModelSpec
from costmodels.models.towers import Tower
from scenarios.schema import Scenario
from scenarios.schema.generator import Documents, Images
from sim.errors import ScenarioError
from workloads.generator import plain
from workloads.generator.distributions import mean_tokens


def with_image_tokens(scenario: Scenario) -> Scenario:
    """Return the scenario with its requests' images as the tokens that the model's tower makes of
    them. Raises `ScenarioError` for a model without such a tower."""
    generator, images = scenario.workload.generator, _images(scenario)
    if generator is None or images is None:
        return scenario
    if generator.documents is not None:
        raise ScenarioError(
            "workload.generator.images and documents do not go together: give one of them"
        )
    tokens = _tower(load_model(scenario.model), scenario).tokens(images.width, images.height)
    documents = Documents.model_validate(
        {"tokens": {"fixed": tokens}, "per_request": {"fixed": images.per_request}}
    )
    changed = generator.model_copy(update={"images": None, "documents": documents})
    workload = scenario.workload.model_copy(update={"generator": changed})
    return scenario.model_copy(update={"workload": workload})


def with_towers(scenario: Scenario, model: ModelSpec) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model with the towers that are loaded, and their work for each new token of a
    prompt, and a note on it."""
    images = _images(scenario)
    if scenario.engine.language_model_only:
        if images is not None:
            raise ScenarioError(
                "workload.generator.images needs a tower: engine.language_model_only loads none"
            )
        return replace(model, towers=()), ()
    if images is None:
        return model, ()
    generator = scenario.workload.generator
    assert generator is not None, "images are the generator's"
    tower = _tower(model, scenario)
    tokens = tower.tokens(images.width, images.height)
    text = mean_tokens(plain.lengths(generator.input_tokens.model_dump()))
    if generator.system_prompts is not None and not generator.system_prompts.part_of_input:
        text += generator.system_prompts.tokens
    flops = images.per_request * tower.flops(tokens * tower.patches_per_token)
    prompt = text + images.per_request * tokens
    note = (
        f"an image of {images.width:,} x {images.height:,} pixels is {tokens:,} tokens, and "
        f"{flops / images.per_request / 1e12:.2g} TFLOP of its tower, spread over new prompt tokens"
    )
    return replace(model, encoder_flops=flops / prompt), (note,)


def _images(scenario: Scenario) -> Images | None:
    for one in scenario.workload.classes or ():
        generator = getattr(one, "generator", None)
        if generator is not None and generator.images is not None:
            raise ScenarioError(
                "workload.classes: images are modelled for workload.generator alone"
            )
    generator = scenario.workload.generator
    return None if generator is None else generator.images


def _tower(model: ModelSpec, scenario: Scenario) -> Tower:
    found = next((one for one in model.towers if one.modality == "vision" and one.patch), None)
    if found is None:
        raise ScenarioError(
            f"workload.generator.images: {scenario.model} has no tower of images whose sizes are "
            "known; give the config.json of a multimodal model, or the images' tokens as documents"
        )
    return found
