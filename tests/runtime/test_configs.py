"""Config dataclasses to JSON and back, and with single fields changed."""

from __future__ import annotations

import pytest

from ilme import models
from ilme.errors import BadInputError
from ilme.runtime.configs import changed_config, config_from_json, config_to_json


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize("size", ["paper", "small", "tiny"])
def test_there_and_back(kind: str, size: str) -> None:
    config = models.preset(kind, size)
    assert config_from_json(type(config), config_to_json(config)) == config == changed_config(config, {})


def test_nested_fields_are_changed_one_by_one() -> None:
    config = models.preset("aed", "small")
    found = changed_config(config, {"dropout": 0.3, "encoder": {"layers": 3}})
    assert found.dropout == 0.3 and found.encoder.layers == 3
    assert changed_config(found, {"dropout": config.dropout, "encoder": {"layers": config.encoder.layers}}) == config


def test_a_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(BadInputError, match="EncoderConfig has no field 'depth'"):
        changed_config(models.preset("rnnt", "tiny"), {"encoder": {"depth": 3}})
