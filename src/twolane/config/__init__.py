"""models.yaml and campaign.yaml in, frozen dataclasses out; every fault as file:line:col."""

from twolane.config.campaign import Arm, Campaign, load_campaign
from twolane.config.cells import parse_cell, parse_size
from twolane.config.groups import regrouped
from twolane.config.models import (
    Engine,
    Layout,
    Model,
    Models,
    Node,
    load_models,
)
from twolane.config.stored import load_results

__all__ = [
    "Arm",
    "Campaign",
    "Engine",
    "Layout",
    "Model",
    "Models",
    "Node",
    "load_campaign",
    "load_models",
    "load_results",
    "parse_cell",
    "parse_size",
    "regrouped",
]
