"""Names as short as a chart needs them."""

_LONGEST = 26


def short_name(variant: str) -> str:
    """`config_4` of `alexnet_config_4`: on the page of one model its name says nothing."""
    _, found, number = variant.rpartition("_config_")
    name = f"config_{number}" if found else variant
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"
