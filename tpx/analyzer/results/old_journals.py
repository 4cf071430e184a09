"""Records of schema 1, which tpx 0.2 and earlier wrote, in the form that this tpx reads."""

from typing import Any

Json = dict[str, Any]


def upgraded(record: Json) -> Json:
    """Return a record in today's form; what has it already stays as it is."""
    match record:
        case {"record": "run"}:
            models = (name.split(",") if isinstance(name, str) else name for name in record["models"])
            return record | {"models": list(models)}
        case {"record": "configuration"}:
            return record | {"configuration": _upgrade_configuration(record["configuration"])}
    return record


def _upgrade_configuration(configuration: Json) -> Json:
    members = map(_upgrade_configuration, configuration.get("members", ()))
    return configuration | {"variant": _upgrade_variant(configuration["variant"]), "members": list(members)}


def _upgrade_variant(variant: Json) -> Json:
    members = list(map(_upgrade_variant, variant.get("members", ())))
    models = variant["model"].split(",") if "model" in variant else variant["models"]
    return variant | {"models": models, "members": members}
