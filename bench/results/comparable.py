"""What must agree before two campaigns can be compared: machines, versions and data."""

from typing import Any

from bench.results.folder import Campaign

MAY_DIFFER = frozenset({"strategybench"})
"""Identity facts that say which code was measured, which is what one compares, and not on what."""


def differences(base: Campaign, new: Campaign) -> list[str]:
    """What differs between the machines, versions and data of two campaigns, each as `name: base != new`."""
    return [*_machine_differences(base, new), *_data_differences(base, new)]


def _distinct(campaign: Campaign, column: str) -> list[str]:
    return sorted({str(row[column]) for row in campaign.run_rows if row[column] not in (None, "")})


def _machine_differences(base: Campaign, new: Campaign) -> list[str]:
    ids = [_distinct(campaign, "environment_id") for campaign in (base, new)]
    if ids[0] == ids[1]:
        return []
    facts = [campaign.environment.get("identity") or {} for campaign in (base, new)]
    if all(facts):
        names = sorted(facts[0].keys() | facts[1].keys())
        unlike = [name for name in names if facts[0].get(name) != facts[1].get(name)]
        if unlike:
            return [_difference(n, facts[0].get(n), facts[1].get(n)) for n in unlike if n not in MAY_DIFFER]
    found = [_difference("environment_id", ", ".join(ids[0]), ", ".join(ids[1]))]
    devices = [", ".join(_distinct(campaign, "device_name")) for campaign in (base, new)]
    return found if devices[0] == devices[1] else [*found, _difference("device_name", *devices)]


def _data_differences(base: Campaign, new: Campaign) -> list[str]:
    """Equal names with unlike samples: the fingerprints of a dataset that both campaigns read."""
    prints: list[dict[str, set[str]]] = [{}, {}]
    for side, campaign in zip(prints, (base, new), strict=True):
        for row in campaign.run_rows:
            if row["dataset_fingerprint"]:
                side.setdefault(row["dataset"], set()).add(row["dataset_fingerprint"])
    return [
        _difference(f"fingerprint of {name}", *(", ".join(sorted(side[name])) for side in prints))
        for name in sorted(prints[0].keys() & prints[1].keys())
        if prints[0][name] != prints[1][name]
    ]


def _difference(name: str, base: Any, new: Any) -> str:
    return f"{name}: {base} != {new}"
