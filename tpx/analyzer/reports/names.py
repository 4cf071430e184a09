"""Names as short as a chart needs them."""

_LONGEST = 26


def short_name(variant: str) -> str:
    """`config_4` of `alexnet_config_4`: on the page of one model its name says nothing."""
    members = variant.split(",")
    if len(members) > 1:
        return " + ".join(f"{_model(name)}:{_number(name)}" for name in members)[:_LONGEST]
    _, found, number = variant.rpartition("_config_")
    name = f"config_{number}" if found else variant
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"


def _model(variant: str) -> str:
    return variant.rpartition("_config_")[0]


def _number(variant: str) -> str:
    return variant.rpartition("_config_")[2]
