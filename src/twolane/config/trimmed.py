"""Layouts that a document prints trimmed: `...` stands for what the entry above says.

Rules of this file: it works on plain values, before their shape is known.
"""

from __future__ import annotations

from typing import Any

from twolane.config.source import YamlFile


def untrim(file: YamlFile) -> None:
    """Fill layouts that a document trimmed with `...`: the rest is as in the entry above.

    A JSON object after the dots replaces the value of the entry's --kv-transfer-config.
    """
    models = file.data.get("models")
    for model in models.values() if isinstance(models, dict) else ():
        layouts = model.get("layouts") if isinstance(model, dict) else None
        before: dict[str, Any] = {}
        for layout in layouts.values() if isinstance(layouts, dict) else ():
            if not isinstance(layout, dict):
                continue
            for key in [k for k in layout if isinstance(k, str) and k.startswith("...")]:
                del layout[key]
                rest = {k: v for k, v in before.items() if k not in layout}
                layout.update(rest)
                if connector := key.lstrip(". "):
                    layout["args"] = [
                        *_without_connector(rest),
                        f"--kv-transfer-config {connector}",
                    ]
            before = layout


def _without_connector(layout: dict[str, Any]) -> list[Any]:
    args = layout.get("args")
    kept = args if isinstance(args, list) else []
    return [a for a in kept if not str(a).startswith("--kv-transfer-config")]
